"""What the unit tests share: the build's scripts as modules, a small index on the loopback, a locked project, a plan."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
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


def wheel(
    name: str,
    version: str = "1.0",
    *,
    tag: str = "py3-none-any",
    files: Mapping[str, str] | None = None,
    requires: Sequence[str] = (),
    scripts: Mapping[str, str] | None = None,
) -> tuple[str, bytes]:
    """Return a wheel's filename and bytes; without `files` it holds one module of its own name."""
    escaped = name.replace("-", "_")
    info = f"{escaped}-{version}.dist-info"
    members = dict(files if files is not None else {f"{escaped}.py": f"version = {version!r}\n"})
    members[f"{info}/METADATA"] = "\n".join(
        ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {r}" for r in requires)]
    )
    members[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n"
    if scripts:
        lines = [f"{script} = {entry}" for script, entry in scripts.items()]
        members[f"{info}/entry_points.txt"] = "\n".join(["[console_scripts]", *lines, ""])
    record = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},{len(text)}"
        for path, text in members.items()
    ]
    members[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in members.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return f"{escaped}-{version}-{tag}.whl", buffer.getvalue()


BACKEND = """
import pathlib, sys
sys.path.insert(0, str(pathlib.Path(__file__).parent))

def build_wheel(directory, config_settings=None, metadata_directory=None):
    {body}
"""


def sdist(name: str, version: str = "1.0", *, body: str = "raise SystemExit('no compiler here')") -> tuple[str, bytes]:
    """Return an sdist's filename and bytes; its build backend is its own and runs `body`."""
    escaped = name.replace("-", "_")
    members = {
        "PKG-INFO": f"Metadata-Version: 2.2\nName: {name}\nVersion: {version}\n",
        "pyproject.toml": f'[project]\nname = "{name}"\nversion = "{version}"\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": BACKEND.format(body=body),
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, text in members.items():
            member = tarfile.TarInfo(f"{escaped}-{version}/{path}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return f"{escaped}-{version}.tar.gz", buffer.getvalue()


class Web:
    """An HTTP server on the loopback; `answers` maps a path to bytes or to a function that answers itself.

    Attributes:
        url: its address, without a slash at the end.
        answers: path → what it sends.
        requests: the paths asked for, in order.
    """

    def __init__(self) -> None:
        self.answers: dict[str, bytes | Callable[[BaseHTTPRequestHandler], None]] = {}
        self.requests: list[str] = []
        web = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 20

            def do_GET(self) -> None:
                web.requests.append(self.path)
                answer = web.answers.get(self.path)
                if callable(answer):
                    answer(self)
                    return
                self.send_response(200 if answer is not None else 404)
                if self.path.startswith("/simple/"):
                    self.send_header("Content-Type", "application/vnd.pypi.simple.v1+json")
                self.send_header("Content-Length", str(len(answer or b"")))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer or b"")

            do_HEAD = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def publish(self, files: Mapping[str, bytes]) -> None:
        """Serve files as a simple index (PEP 691)."""
        projects: dict[str, list[dict[str, object]]] = {}
        for filename, data in files.items():
            self.answers[f"/files/{filename}"] = data
            entry = {
                "filename": filename,
                "url": f"{self.url}/files/{filename}",
                "hashes": {"sha256": hashlib.sha256(data).hexdigest()},
                "size": len(data),
                "upload-time": "2020-01-01T00:00:00Z",
            }
            projects.setdefault(filename.split("-")[0].replace("_", "-"), []).append(entry)
        for name, entries in projects.items():
            answer = {"meta": {"api-version": "1.1"}, "name": name, "files": entries}
            self.answers[f"/simple/{name}/"] = json.dumps(answer).encode()


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
