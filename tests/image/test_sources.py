"""Every kind of source that uv can lock: planned with its exact closure, built offline, verified, and refused when tampered."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.image.support import (
    VENV_DIR,
    Built,
    Images,
    build,
    copy_project,
    differences,
    error_line,
    greenroom,
    succeeded,
    write_project,
)
from tests.packages import Web, sdist, wheel

# Makes a wheel of one module without any build requirement. `{extra}` runs first.
BACKEND = """
import base64, hashlib, os, pathlib, tomllib, zipfile
{extra}
PROJECT = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]
NAME, VERSION = PROJECT["name"], PROJECT["version"]

def build_wheel(directory, config_settings=None, metadata_directory=None):
    info = f"{{NAME}}-{{VERSION}}.dist-info"
    said = [(config_settings or {{}}).get("word"), os.environ.get("SAID")]
    members = {{
        f"{{NAME}}.py": pathlib.Path("module.py").read_text() + f"\\nsaid = {{said!r}}\\n",
        f"{{info}}/METADATA": f"Metadata-Version: 2.2\\nName: {{NAME}}\\nVersion: {{VERSION}}\\n",
        f"{{info}}/WHEEL": "Wheel-Version: 1.0\\nGenerator: here\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }}
    record = ""
    for name, text in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{{name}},sha256={{digest}},{{len(text)}}\\n"
    members[f"{{info}}/RECORD"] = record + f"{{info}}/RECORD,,\\n"
    wheel = f"{{NAME}}-{{VERSION}}-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(directory) / wheel, "w") as archive:
        for name, text in members.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return wheel

build_editable = build_wheel
"""


def source_tree(directory: Path, name: str, *, extra: str = "", module: str = "where = 'tree'") -> Path:
    """Write a project of one module."""
    directory.mkdir(parents=True)
    (directory / "pyproject.toml").write_text(
        f'[project]\nname = "{name}"\nversion = "1.0"\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (directory / "backend.py").write_text(BACKEND.format(extra=extra))
    (directory / "module.py").write_text(module)
    return directory


def git(directory: Path, *words: str) -> str:
    identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost", "-c", "protocol.file.allow=always"]
    done = subprocess.run(
        ["git", "-C", directory, *identity, *words], check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip()


@dataclass(frozen=True, kw_only=True)
class Job:
    """A locked project with every kind of source.

    Attributes:
        root: its directory.
        commit: of the git source.
    """

    root: Path
    commit: str


ACTORS = {
    "job.Index": ["index"],
    "job.Git": ["git"],
    "job.Local": ["local"],
    "job.Address": ["address"],
    "job.Joined": ["joined"],
    "job.Bare": ["bare"],
    "job.Old": ["old"],
    "job.New": ["new"],
}
EXTRAS = {
    "index": ["fromwheel", "fromsdist", "pinned", "onlywindows; sys_platform == 'win32'"],
    "git": ["gitthing", "gitpart"],
    "local": ["member", "vendored", "filething", "mountedthing"],
    "address": ["urlthing"],
    "joined": ["job[address]", "fromwheel"],
    "bare": ["bare", "helper"],
    "old": ["shared<2"],
    "new": ["shared>=2"],
}
COMMON = {"grouped": "1.0"}
CLOSURES: Mapping[str, dict[str, str]] = {
    "index": {"fromwheel": "1.0", "fromsdist": "1.0", "pinned": "1.0", "needed": "1.5"},
    "git": {"gitthing": "1.0", "gitpart": "1.0"},
    "local": {"member": "1.0", "vendored": "1.0", "filething": "1.0", "mountedthing": "1.0"},
    "address": {"urlthing": "1.0"},
    "joined": {"urlthing": "1.0", "fromwheel": "1.0", "needed": "1.5"},
    "bare": {"bare": "1.0", "helper": "1.0"},
    "old": {"shared": "1.0"},
    "new": {"shared": "2.0"},
}

TABLES = """
[dependency-groups]
dev = ["grouped"]
never = ["neverthere"]

[tool.uv.workspace]
members = ["libs/*"]

[tool.uv.sources]
pinned = {{ index = "second" }}
gitthing = {{ git = "file://{repository}", rev = "{commit}" }}
gitpart = {{ git = "file://{repository}", rev = "{commit}", subdirectory = "part" }}
member = {{ workspace = true }}
vendored = {{ path = "vendored" }}
mountedthing = {{ path = "mountedthing", editable = true }}
filething = {{ path = "files/{filename}" }}
urlthing = {{ url = "{url}" }}

[[tool.uv.index]]
url = "{first}/simple/"
default = true

[[tool.uv.index]]
name = "second"
url = "{second}/simple/"
explicit = true

[tool.uv.extra-build-variables]
fromsdist = {{ SAID = "variable" }}
[tool.uv.config-settings-package]
fromsdist = {{ word = "setting" }}

[tool.greenroom.mounted]
mountedthing = "/workspace/mountedthing"
"""
UV = """[tool.uv]
override-dependencies = ["needed==1.5"]
exclude-dependencies = ["unwanted"]
no-build-isolation-package = ["bare"]
conflicts = [[{ extra = "old" }, { extra = "new" }]]
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    directory = tmp_path_factory.mktemp("sources")
    first, second = Web(), Web()
    wheels = [
        wheel(name) for name in ("pinned", "helper", "grouped", "neverthere", "unwanted", "onlywindows", "urlthing")
    ]
    wheels += [wheel("needed", "1.5"), wheel("needed", "2.0"), wheel("shared", "1.0"), wheel("shared", "2.0")]
    wheels += [wheel("fromwheel", requires=["needed>=2", "unwanted"])]
    second.publish(dict([wheel("pinned", files={"pinned.py": "where = 'second'\n"})]))
    trees = directory / "trees"
    first.publish(
        {
            **dict(wheels),
            **dict([packed(source_tree(trees / "fromsdist", "fromsdist"))]),
            **dict([packed(source_tree(trees / "bare", "bare", extra="import helper"))]),
        }
    )
    # Builds look at the index for nothing: they need no requirement.
    repository = source_tree(directory / "repository", "gitthing", module="where = 'git'")
    source_tree(repository / "part", "gitpart")
    git(repository, "init", "--quiet", "--initial-branch", "main")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "one")
    commit = git(repository, "rev-parse", "HEAD")

    root = write_project(directory / "job", actors=ACTORS, extras=EXTRAS)
    source_tree(root / "libs/member", "member")
    source_tree(root / "vendored", "vendored")
    source_tree(root / "mountedthing", "mountedthing")
    filename, data = wheel("filething")
    (root / "files").mkdir()
    (root / "files" / filename).write_bytes(data)
    text = (root / "pyproject.toml").read_text()
    text = text.replace('name = "tiny"', 'name = "job"').replace("[tool.uv]\n", UV)
    values = {
        "repository": repository,
        "commit": commit,
        "filename": filename,
        "first": first.url,
        "second": second.url,
    }
    url = f"{first.url}/files/{wheel('urlthing')[0]}"
    (root / "pyproject.toml").write_text(text + TABLES.format(**values, url=url))
    succeeded(greenroom("lock", "--project", root))
    yield Job(root=root, commit=commit)
    first.close()
    second.close()


def packed(tree: Path) -> tuple[str, bytes]:
    """Return a tree as an sdist."""
    files = {path.name: path.read_text() for path in tree.iterdir()}
    return sdist(tree.name, members=files)


@pytest.fixture(scope="module")
def image(job: Job, images: Images) -> Built:
    return build(images, "sources", job.root)


def test_each_set_has_exactly_its_closure(job: Job) -> None:
    plan = json.loads(succeeded(greenroom("plan", "--project", job.root, "--json")).stdout)
    assert plan["closures"] == {name: {**COMMON, **closure} for name, closure in CLOSURES.items()}


WHERE = {
    "job.Index": (
        "fromwheel, fromsdist, pinned",
        "[fromsdist.said, pinned.where]",
        [["setting", "variable"], "second"],
    ),
    "job.Git": ("gitthing, gitpart", "[gitthing.where, gitpart.where]", ["git", "tree"]),
    "job.Local": ("member, vendored, filething", "[member.where, vendored.where]", ["tree", "tree"]),
    "job.Bare": ("bare, helper", "[bare.where]", ["tree"]),
}


@pytest.mark.parametrize("fqn", WHERE)
def test_what_is_built_from_each_source_works(image: Built, images: Images, fqn: str) -> None:
    modules, what, expected = WHERE[fqn]
    code = f"import json, {modules}; print(json.dumps({what}))"
    assert images.python(image.tag, code, interpreter=f"{VENV_DIR}/{fqn}/bin/python") == expected


def test_a_mounted_source_is_found_where_it_is_mounted(job: Job, image: Built, images: Images) -> None:
    code = "import mountedthing; print(mountedthing.where)"
    mounted = job.root / "mounted-here"
    mounted.mkdir(exist_ok=True)
    (mounted / "mountedthing.py").write_text("where = 'mounted'\n")
    words = ["run", "--rm", "--network", "none", "--read-only", "--volume", f"{mounted}:/workspace/mountedthing:ro"]
    words += ["--entrypoint", f"{VENV_DIR}/job.Local/bin/python", image.tag, "-B", "-c", code]
    assert images.engine.cli(*words, changes=True, timeout=60).stdout.strip() == "mounted"


def test_the_image_is_what_the_plan_says(job: Job, image: Built) -> None:
    assert differences(job.root, image.tag) == (0, [])
    stamps = {item["name"]: item for item in image.plan["sets"]}
    assert set(stamps) == set(CLOSURES)


TAMPERED = {
    "job.Index": ("index", "fromsdist.py"),
    "job.Git": ("git", "gitthing.py"),
    "job.Local": ("local", "vendored.py"),
    "job.Address": ("address", "urlthing.py"),
    "job.Bare": ("bare", "bare.py"),
}


@pytest.mark.parametrize("fqn", TAMPERED)
def test_a_changed_file_of_each_source_is_refused(job: Job, image: Built, images: Images, fqn: str) -> None:
    name, file = TAMPERED[fqn]
    path = f"{VENV_DIR}/.sets/{name}/lib/python3.13/site-packages/{file}"
    # A copy of its own: the others share the file.
    tag = images.derive(
        f"sources-{name}", image.tag, f"RUN cp {path} /x && echo '#' >> /x && rm {path} && mv /x {path}"
    )
    code, rows = differences(job.root, tag)
    assert code == 1
    assert {(check, venv) for check, venv, _ in rows} == {("files", fqn)}
    assert all(file in what for _, _, what in rows)


def test_another_commit_of_the_same_version_is_another_image(job: Job, image: Built, tmp_path: Path) -> None:
    other = copy_project(job.root, tmp_path / "job")
    lock = other / "uv.lock"
    lock.write_text(lock.read_text().replace(job.commit, "0" * 40))
    text = (other / "pyproject.toml").read_text()
    (other / "pyproject.toml").write_text(text.replace(job.commit, "0" * 40))
    code, rows = differences(other, image.tag)
    assert code == 1
    assert {(check, venv) for check, venv, _ in rows} == {("stamp", "job.Git")}


def test_a_lost_commit_is_said_in_one_line(job: Job, images: Images, tmp_path: Path) -> None:
    other = copy_project(job.root, tmp_path / "job")
    for name in ("uv.lock", "pyproject.toml"):
        (other / name).write_text((other / name).read_text().replace(job.commit, "0" * 40))
    done = greenroom("image", "--project", other, "--tag", images.tag("lost"), "--skip", "local")
    assert done.returncode == 4
    assert "commit 000000000000 of" in error_line(done)


REFUSED = {
    "outside": (
        '[project.optional-dependencies]\nx = ["outs"]\n[tool.uv.sources]\nouts = { path = "../outs" }\n',
        "outside of the project",
    ),
    "ignored": (
        '[project.optional-dependencies]\nx = ["outs"]\n[tool.uv.sources]\nouts = { path = "tests/outs" }\n',
        "leaves that path out",
    ),
    "dynamic": (
        '[project.optional-dependencies]\nx = ["dyn"]\n[tool.uv.sources]\ndyn = { path = "dyn" }\n',
        "computes its version",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_baked_is_refused_when_planning(tmp_path: Path, case: str) -> None:
    text, said = REFUSED[case]
    root = write_project(tmp_path / "job", actors={"job.X": ["x"]}, extras={})
    source_tree(tmp_path / "outs", "outs")
    source_tree(root / "tests/outs", "outs")
    dynamic = source_tree(root / "dyn", "dyn")
    pyproject = (dynamic / "pyproject.toml").read_text()
    (dynamic / "pyproject.toml").write_text(pyproject.replace('version = "1.0"', 'dynamic = ["version"]'))
    (dynamic / "backend.py").write_text(DYNAMIC)
    path = root / "pyproject.toml"
    path.write_text(path.read_text().replace("[project.optional-dependencies]\n", text, 1))
    succeeded(greenroom("lock", "--project", root))
    done = greenroom("plan", "--project", root)
    assert done.returncode == 2
    assert said in error_line(done)


DYNAMIC = """
import pathlib

def prepare_metadata_for_build_wheel(directory, config_settings=None):
    info = pathlib.Path(directory) / "dyn-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.2\\nName: dyn\\nVersion: 1.0\\n")
    return info.name

def build_wheel(directory, config_settings=None, metadata_directory=None):
    raise SystemExit("not to be built")
"""
