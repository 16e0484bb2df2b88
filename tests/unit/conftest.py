"""What the unit tests share: the build's scripts as modules, a small index on the loopback, a locked project, a plan."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from tests.packages import Web, sdist, wheel
from uv import find_uv_bin

REPOSITORY = Path(__file__).parents[2]
# The scripts import each other by their plain names, as they do in the build.
sys.path.insert(0, str(REPOSITORY / "docker"))

from greenroom.lock import Artifact, Closure, uv_lock  # noqa: E402
from greenroom.manifest import Row  # noqa: E402
from greenroom.plan import Plan, make_plan  # noqa: E402
from greenroom.target import Target  # noqa: E402

# Machines differ in speed; a slow example is no failure.
settings.register_profile("unit", deadline=None, max_examples=60)
settings.load_profile("unit")

WheelMaker = Callable[..., tuple[str, bytes]]
PlanMaker = Callable[..., Plan]

TARGET = Target(python="3.13.5", implementation="cpython", machine="x86_64", glibc="2.41")


@pytest.fixture
def web() -> Iterator[Web]:
    """An HTTP server of this test's own."""
    served = Web()
    yield served
    served.close()


@pytest.fixture(scope="session")
def make_wheel() -> WheelMaker:
    """The maker of wheels."""
    return wheel


@pytest.fixture(scope="session")
def make_sdist() -> WheelMaker:
    """The maker of sdists."""
    return sdist


@pytest.fixture(scope="session")
def uv() -> str:
    """The uv program."""
    return find_uv_bin()


@pytest.fixture(scope="session")
def index() -> Iterator[Web]:
    """An index of a few small distributions.

    `shared` has two releases for `conflicts` to need, `native` has one wheel per platform, `source-only` has no wheel
    and `other-python` one for a Python that the usual target does not run.
    """
    served = Web()
    files = [
        wheel("base"),
        wheel("shared", "1.0"),
        wheel("shared", "2.0"),
        wheel("base-more"),
        wheel("base2"),
        wheel("windows-helper"),
        wheel("needs-helper", requires=["windows-helper; sys_platform == 'win32'", "base"]),
        wheel("native", tag="cp313-cp313-manylinux_2_17_x86_64"),
        wheel("native", tag="cp312-cp312-manylinux_2_17_x86_64"),
        wheel("native", tag="cp313-cp313-win_amd64"),
        sdist("source-only"),
        wheel("other-python", tag="cp312-cp312-manylinux_2_17_x86_64"),
    ]
    served.publish(dict(files))
    yield served
    served.close()


@contextlib.contextmanager
def own_uv_environment(cache: Path) -> Iterator[None]:
    """Within this context uv meets no index, cache or setting of this machine."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in list(os.environ):
            if variable.startswith(("UV_", "PIP_")) or variable.lower().endswith("_proxy"):
                patch.delenv(variable)
        patch.setenv("UV_CACHE_DIR", str(cache))
        patch.setenv("UV_PYTHON", sys.executable)
        patch.setenv("UV_PYTHON_DOWNLOADS", "never")
        patch.setenv("UV_HTTP_TIMEOUT", "20")
        patch.setenv("XDG_CONFIG_HOME", str(cache))
        yield


@pytest.fixture(scope="session")
def uv_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """uv's cache while these tests run."""
    return tmp_path_factory.mktemp("uv-cache")


@pytest.fixture
def own_uv(uv_cache: Path) -> Iterator[None]:
    """uv meets no index, cache or setting of this machine."""
    with own_uv_environment(uv_cache):
        yield


PYPROJECT = """
[project]
name = "demo"
version = "3.1"
requires-python = ">=3.11"
dependencies = ["base"]

[project.optional-dependencies]
one = ["shared<2", "needs-helper"]
two = ["shared>=2"]
native = ["native"]
source = ["source-only"]
old = ["other-python; sys_platform == 'linux'"]
order = ["base-more", "base2"]
empty = []

[tool.uv]
package = {package}
environments = ["sys_platform == 'linux'", "sys_platform == 'win32'"]
conflicts = [[{{ extra = "one" }}, {{ extra = "two" }}]]

[[tool.uv.index]]
url = "{url}/simple/"
default = true
"""


@pytest.fixture(scope="session")
def write_project(index: Web) -> Callable[..., Path]:
    """Write a project that uses the index; nothing is locked yet."""

    def write(root: Path, *, package: bool = False, extra_lines: str = "") -> Path:
        root.mkdir(parents=True, exist_ok=True)
        build_system = '[build-system]\nrequires = []\nbuild-backend = "none"\n' if package else ""
        text = PYPROJECT.format(url=index.url, package=str(package).lower())
        (root / "pyproject.toml").write_text(build_system + text + extra_lines)
        return root

    return write


@pytest.fixture(scope="session")
def locked(
    uv: str, uv_cache: Path, write_project: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A locked project that is no package; tests that change it copy it first."""
    root = write_project(tmp_path_factory.mktemp("locked"))
    with own_uv_environment(uv_cache):
        uv_lock(uv, root)
    return root


@pytest.fixture(scope="session")
def target() -> Target:
    """The target of most plans here."""
    return TARGET


def artifact(name: str, version: str = "1.0", *, size: int = 1000, content: str = "") -> Artifact:
    """Return a wheel as a lock has it; its hash follows from its name, version and content."""
    return Artifact(
        filename=f"{name}-{version}-py3-none-any.whl",
        name=name,
        version=version,
        sha256=hashlib.sha256(f"{name} {version} {content}".encode()).hexdigest(),
        size=size,
        kind="wheel",
    )


@pytest.fixture(scope="session")
def make_artifact() -> Callable[..., Artifact]:
    """The maker of artifacts."""
    return artifact


def sample_plan(**changes: Any) -> Plan:
    """Return a plan of three actors in two sets, one more left out; arguments of `make_plan` may be exchanged."""
    rows = (
        Row(fqn="job.workers.Alpha", stage="deps", extras=("one",)),
        Row(fqn="job.workers.Beta", stage="deps", extras=("one",)),
        Row(fqn="job.workers.Gamma", stage="deps", extras=("two", "one")),
        Row(fqn="job.workers.Delta", stage="compiled", extras=("heavy",)),
    )
    closures = {
        "one": Closure(artifacts=(artifact("base"), artifact("one")), urls={}, project=None),
        "one+two": Closure(artifacts=(artifact("base"), artifact("one"), artifact("two")), urls={}, project=None),
    }
    arguments: dict[str, Any] = {
        "rows": rows,
        "selected": rows[:3],
        "closures": closures,
        "target": TARGET,
        "stage": "all",
        "skip": ("heavy",),
    }
    return make_plan(**{**arguments, **changes})


@pytest.fixture(scope="session")
def make_sample_plan() -> PlanMaker:
    """The maker of plans."""
    return sample_plan
