"""A project's settings: what is right, and one line for everything that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from greenroom.errors import UsageError
from greenroom.project import load_project

REPOSITORY = Path(__file__).parents[2]


def write(root: Path, pyproject: str, *manifests: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    (root / "pyproject.toml").write_text(pyproject)
    for manifest in manifests:
        (root / manifest).parent.mkdir(parents=True, exist_ok=True)
        (root / manifest).write_text("")
    return root


def test_this_repository() -> None:
    project = load_project(REPOSITORY)
    assert project.name == "greenroom"
    assert project.is_package
    assert project.manifest_in_context == "src/greenroom/actor_environments.py"
    assert project.closures == REPOSITORY / "closures.txt"
    assert (project.base_image, project.venv_dir, project.tag) == (
        "bootstrap:trixie",
        "/opt/ray_venvs",
        "greenroom:latest",
    )
    assert "ci" in project.matrix


def test_the_benchmark_is_a_project_that_is_no_package() -> None:
    project = load_project(REPOSITORY / "bench" / "post-training")
    assert (project.is_package, project.manifest_in_context, project.closures) == (False, "actor_environments.py", None)


def test_without_settings_everything_has_a_default(tmp_path: Path) -> None:
    project = load_project(write(tmp_path, '[project]\nname = "My_Job"\n', "actor_environments.py"))
    assert (project.name, project.version, project.tag) == ("my-job", "", "my-job:latest")
    assert project.matrix == {}


def test_settings(tmp_path: Path) -> None:
    text = """
[project]
name = "job"
version = "2.0"
[tool.greenroom]
manifest = "conf/envs.py"
base-image = "debian:13"
venv-dir = "/srv/venvs"
python = "3.12.12"
tag = "team/job:1"
closures = "conf/closures.txt"
[tool.greenroom.matrix]
full = []
ci = ["Nemo_Gym", "vllm"]
"""
    project = load_project(write(tmp_path, text, "conf/envs.py", "actor_environments.py"))
    assert project.manifest_in_context == "conf/envs.py"
    assert project.closures == tmp_path / "conf" / "closures.txt"
    assert (project.version, project.base_image, project.venv_dir, project.tag) == (
        "2.0",
        "debian:13",
        "/srv/venvs",
        "team/job:1",
    )
    assert project.python == "3.12.12"
    assert list(project.matrix.items()) == [("full", ()), ("ci", ("nemo-gym", "vllm"))]


PACKAGES = [
    ("", False),
    ("[build-system]\nrequires = []\n", True),
    ("[build-system]\nrequires = []\n[tool.uv]\npackage = false\n", False),
    ("[tool.uv]\npackage = true\n", True),
]


@pytest.mark.parametrize(("text", "is_package"), PACKAGES)
def test_a_project_is_a_package_as_uv_sees_it(tmp_path: Path, text: str, is_package: bool) -> None:
    assert load_project(write(tmp_path, text, "actor_environments.py")).is_package is is_package


WRONG = {
    "an unknown setting": ('mainfest = "x"', "unknown setting in .*mainfest"),
    "a number for a string": ("tag = 3", "tag must be a string"),
    "a list for a string": ('manifest = ["a"]', "manifest must be a string"),
    "a table for a string": ("base-image = {}", "base-image must be a string"),
    "a relative directory": ('venv-dir = "opt/venvs"', "venv-dir 'opt/venvs' is not an absolute"),
    "the root": ('venv-dir = "/"', "venv-dir '/' is not"),
    "a directory of the root": ('venv-dir = "/opt"', "venv-dir '/opt' is not"),
    "a way out of a directory": ('venv-dir = "/opt/.."', "venv-dir '/opt/..' is not"),
    "a Python without its third number": ('python = "3.12"', "python '3.12' is no version of three numbers"),
    "a list for the matrix": ('matrix = ["a"]', "must be a table"),
    "a string for a variant": ('matrix = { ci = "a" }', "ci must be a list"),
    "a number for a skip": ("matrix = { ci = [1] }", "ci must be a list"),
    "a manifest that is not there": ('manifest = "no.py"', "no manifest at no.py"),
    "a manifest that is a directory": ('manifest = "src"', "no manifest at src"),
    "a manifest elsewhere": ('manifest = "../outside.py"', "no manifest at ../outside.py"),
    "malformed text": ("tag = ", "pyproject.toml of project: "),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_setting_is_named(tmp_path: Path, case: str) -> None:
    setting, said = WRONG[case]
    (tmp_path / "outside.py").write_text("")
    root = write(tmp_path / "project", f"[tool.greenroom]\n{setting}\n", "src/job/actor_environments.py")
    with pytest.raises(UsageError, match=said) as caught:
        load_project(root)
    assert caught.value.exit_code == 2


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"[project]\nname = '\xff'\n")
    with pytest.raises(UsageError, match=r"pyproject\.toml of "):
        load_project(tmp_path)


@pytest.mark.parametrize(
    "manifests", [[], ["actor_environments.py", "src/a/actor_environments.py"], ["src/a/other.py"]]
)
def test_none_or_several_manifests_ask_for_the_setting(tmp_path: Path, manifests: list[str]) -> None:
    found = sum(path.endswith("actor_environments.py") for path in manifests)
    with pytest.raises(UsageError, match=f"{found} manifests named") as caught:
        load_project(write(tmp_path, "", *manifests))
    assert "manifest = " in caught.value.next_step


def test_the_argument_overrides_the_setting(tmp_path: Path) -> None:
    root = write(tmp_path, '[tool.greenroom]\nmanifest = "a.py"\n', "a.py", "b.py")
    assert load_project(root, manifest="b.py").manifest_in_context == "b.py"


def test_no_pyproject(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no pyproject\.toml in"):
        load_project(tmp_path)
