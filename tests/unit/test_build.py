"""The build's command line, context and secrets."""

from __future__ import annotations

import itertools
import netrc as netrc_format
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from greenroom.build import (
    BuildRequest,
    Secrets,
    build_arguments,
    copy_pipeline,
    creation_time,
    pipeline_directory,
    read_secrets,
    source_revision,
    with_secrets,
)
from greenroom.engine import Engine
from greenroom.errors import BuildError
from greenroom.plan import Plan
from greenroom.process import run
from greenroom.project import load_project

REPOSITORY = Path(__file__).parents[2]
DOCKERFILE = REPOSITORY / "docker" / "Dockerfile"
CONTEXT = Path("/context/greenroom")


@pytest.fixture
def request_of(make_sample_plan: Callable[..., Plan]) -> Callable[..., BuildRequest]:
    def make(root: Path = REPOSITORY, **changes: object) -> BuildRequest:
        values: dict[str, object] = {
            "project": load_project(root),
            "plan": make_sample_plan(),
            "base_image": "base:1",
            "tag": "job:aside",
            "urls": {},
        }
        return BuildRequest(**{**values, **changes})  # type: ignore[arg-type]

    return make


def options(arguments: list[str], name: str) -> list[str]:
    return [value for option, value in itertools.pairwise(arguments) if option == name]


def declared_arguments() -> set[str]:
    """Return the names of every ARG of the Dockerfile."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if line.startswith("ARG ")]
    return {word.split("=")[0] for line in lines for word in re.sub(r'"[^"]*"', "", line).split()[1:]}


def test_exactly_the_dockerfiles_arguments_are_passed(request_of: Callable[..., BuildRequest]) -> None:
    passed = options(build_arguments(request_of(), CONTEXT, {}), "--build-arg")
    assert {value.split("=")[0] for value in passed} == declared_arguments()
    assert len(passed) == len(declared_arguments())


def test_values_of_the_arguments(
    request_of: Callable[..., BuildRequest], make_sample_plan: Callable[..., Plan]
) -> None:
    plan = make_sample_plan(skip=("heavy", "one"), stage="deps")
    values = dict(
        value.split("=", 1) for value in options(build_arguments(request_of(plan=plan), CONTEXT, {}), "--build-arg")
    )
    assert values["BASE_IMAGE"] == "base:1"
    assert values["STAGE"] == "deps"
    assert values["SKIP_EXTRAS"] == "heavy one"
    assert values["SOURCE"] == "."
    assert values["MANIFEST"] == "src/greenroom/actor_environments.py"
    assert values["PLAN_DIGEST"] == plan.digest
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", values["MANIFEST_DIGEST"])
    assert values["PYTHON_VERSION"] == plan.target.python


def test_a_project_that_is_no_package_keeps_its_sources_out(request_of: Callable[..., BuildRequest]) -> None:
    arguments = build_arguments(request_of(REPOSITORY / "bench" / "post-training"), CONTEXT, {})
    assert "SOURCE=pyproject.toml" in options(arguments, "--build-arg")
    assert arguments[-1] == str(REPOSITORY / "bench" / "post-training")


@pytest.mark.parametrize("no_cache", [True, False])
def test_the_rest_of_the_command_line(request_of: Callable[..., BuildRequest], no_cache: bool) -> None:
    secrets: Secrets = {"netrc": "machine a login b password c", "ca": Path("/aside/ca")}
    arguments = build_arguments(request_of(no_cache=no_cache), CONTEXT, secrets)
    assert arguments[:2] == ["buildx", "build"]
    assert options(arguments, "--file") == ["/context/greenroom/docker/Dockerfile"]
    assert options(arguments, "--build-context") == ["greenroom=/context/greenroom"]
    assert options(arguments, "--target") == ["release"]
    assert options(arguments, "--tag") == ["job:aside"]
    assert options(arguments, "--progress") == ["rawjson"]
    assert options(arguments, "--secret") == ["id=ca,src=/aside/ca", "id=netrc,env=GREENROOM_SECRET_NETRC"]
    engine = Engine(host="unix:///nowhere", docker="docker", environment={"PATH": "/bin"}, private=False)
    informed = with_secrets(engine, secrets).environment
    assert informed == {"PATH": "/bin", "GREENROOM_SECRET_NETRC": "machine a login b password c"}
    assert ("--no-cache" in arguments) is no_cache


NETRC = """
machine index.example login alice password s3cret-a
machine files.example login bob password s3cret-b
machine elsewhere.example login eve password s3cret-e
default login nobody password s3cret-d
"""


@pytest.fixture
def netrc(tmp_path: Path) -> Path:
    path = tmp_path / "netrc"
    path.write_text(NETRC)
    path.chmod(0o600)
    return path


def test_only_credentials_of_hosts_in_use_are_passed(netrc: Path) -> None:
    environ = {"NETRC": str(netrc), "UV_DEFAULT_INDEX": "https://index.example/simple"}
    urls = ["https://files.example/a.whl", "https://files.example/b.whl", "https://open.example/c.whl"]
    secrets = read_secrets(environ, urls)
    assert str(secrets["netrc"]).splitlines() == [
        "machine index.example login alice password s3cret-a",
        "machine files.example login bob password s3cret-b",
    ]
    assert secrets["index"] == "https://index.example/simple"


def test_secrets_are_in_no_file_and_not_in_the_command_line(
    netrc: Path, request_of: Callable[..., BuildRequest]
) -> None:
    environ = {"NETRC": str(netrc), "PIP_INDEX_URL": "https://token:s3cret-i@index.example/simple"}
    secrets = read_secrets(environ, [])
    for name in ("index", "netrc"):
        assert "s3cret" in str(secrets[name])
        assert not isinstance(secrets[name], Path)
    arguments = build_arguments(request_of(urls={"f": environ["PIP_INDEX_URL"]}), CONTEXT, secrets)
    assert not [argument for argument in arguments if "s3cret" in argument or "token" in argument]


def test_without_anything_set_there_is_no_secret_but_the_systems_bundle(tmp_path: Path) -> None:
    secrets = read_secrets({"NETRC": str(tmp_path / "none")}, ["https://files.example/a.whl"])
    assert set(secrets) <= {"ca"}


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE"])
def test_the_ca_bundle_is_the_one_that_the_environment_names(tmp_path: Path, variable: str) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_text("certificates")
    environ = {variable: str(bundle), "NETRC": str(tmp_path / "none")}
    assert read_secrets(environ, [])["ca"] == bundle


ENTRIES = [
    "login alice password abc#def",
    'login "alice b" password "s3c ret"',
    r'login "a\"b" password "c\\d"',
    "password only-a-token",
    "login alice password #1",
]


@pytest.mark.parametrize("entry", ENTRIES)
def test_credentials_arrive_as_they_were(tmp_path: Path, entry: str) -> None:
    path = tmp_path / "netrc"
    path.write_text(f"machine files.example {entry}\n")
    secrets = read_secrets({"NETRC": str(path)}, ["https://files.example/a.whl"])
    copy = tmp_path / "copy"
    copy.write_text(str(secrets["netrc"]))
    assert netrc_format.netrc(copy).hosts == netrc_format.netrc(path).hosts


def test_a_netrc_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "netrc"
    path.write_text("machine\n")
    with pytest.raises(BuildError, match="netrc cannot be read"):
        read_secrets({"NETRC": str(path)}, ["https://files.example/a.whl"])


def test_the_context_is_the_dockerfile_the_scripts_and_the_modules_they_share(tmp_path: Path) -> None:
    copy_pipeline(tmp_path / "context")
    copied = {
        str(path.relative_to(tmp_path / "context")) for path in (tmp_path / "context").rglob("*") if path.is_file()
    }
    scripts = {f"docker/{path.name}" for path in pipeline_directory().iterdir() if path.is_file()}
    modules = {f"src/greenroom/{path.name}" for path in (REPOSITORY / "src/greenroom").glob("*.py")}
    assert copied == scripts | modules
    assert "docker/Dockerfile" in copied


def test_the_context_is_enough_for_every_copy_of_the_dockerfile(tmp_path: Path) -> None:
    copy_pipeline(tmp_path / "context")
    text = DOCKERFILE.read_text()
    named = re.findall(r"^COPY --from=greenroom (.*) /$", text, re.M)
    named += re.findall(r"/greenroom(/docker/\w+\.py)", text)
    paths = {word for words in named for word in words.split()}
    assert len(paths) >= 5
    assert [path for path in sorted(paths) if not (tmp_path / "context" / path.lstrip("/")).is_file()] == []


def test_the_creation_time() -> None:
    assert creation_time({"SOURCE_DATE_EPOCH": "0"}) == "1970-01-01T00:00:00Z"
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", creation_time({}))


def test_the_revision_says_when_files_differ(tmp_path: Path) -> None:
    assert source_revision(tmp_path) == ""
    run(["git", "init", "--quiet", tmp_path])
    (tmp_path / "a").write_text("1")
    run(["git", "-C", tmp_path, "add", "."])
    run(["git", "-C", tmp_path, "-c", "user.name=x", "-c", "user.email=x@x", "commit", "--quiet", "-m", "x"])
    revision = source_revision(tmp_path)
    assert re.fullmatch(r"[0-9a-f]{40}", revision)
    (tmp_path / "a").write_text("2")
    assert source_revision(tmp_path) == f"{revision}-dirty"
