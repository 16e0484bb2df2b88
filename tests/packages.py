"""Distributions made for a test, and an index on the loopback interface that serves them: they need nothing else."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


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


def sdist(
    name: str,
    version: str = "1.0",
    *,
    body: str = "raise SystemExit('no compiler here')",
    members: Mapping[str, str] | None = None,
) -> tuple[str, bytes]:
    """Return an sdist's filename and bytes; its build backend is its own and runs `body`, unless `members` say otherwise."""
    escaped = name.replace("-", "_")
    files = {
        "PKG-INFO": f"Metadata-Version: 2.2\nName: {name}\nVersion: {version}\n",
        "pyproject.toml": f'[project]\nname = "{name}"\nversion = "{version}"\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": BACKEND.format(body=body),
        **(members or {}),
    }
    return f"{escaped}-{version}.tar.gz", _packed(f"{escaped}-{version}", files)


def _packed(directory: str, members: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, text in members.items():
            member = tarfile.TarInfo(f"{directory}/{path}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


# Compiles one C file with the variables that the project gives; metadata needs no compiler.
NATIVE_BACKEND = """
import base64, hashlib, os, pathlib, subprocess, sysconfig, zipfile

NAME, VERSION = "{name}", "{version}"
INFO = f"{{NAME}}-{{VERSION}}.dist-info"
METADATA = f"Metadata-Version: 2.2\\nName: {{NAME}}\\nVersion: {{VERSION}}\\n"

def prepare_metadata_for_build_wheel(directory, config_settings=None):
    (pathlib.Path(directory) / INFO).mkdir()
    (pathlib.Path(directory) / INFO / "METADATA").write_text(METADATA)
    return INFO

def build_wheel(directory, config_settings=None, metadata_directory=None):
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    flags = os.environ.get("NATIVE_FLAGS", "").split()
    include = sysconfig.get_path("include")
    subprocess.run(["cc", "-shared", "-fPIC", *flags, f"-I{{include}}", "native.c", "-o", "native.so"], check=True)
    members = {{
        NAME + suffix: pathlib.Path("native.so").read_bytes(),
        f"{{INFO}}/METADATA": METADATA.encode(),
        f"{{INFO}}/WHEEL": f"Wheel-Version: 1.0\\nGenerator: here\\nRoot-Is-Purelib: false\\nTag: {{tag()}}\\n".encode(),
    }}
    record = []
    for path, data in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.append(f"{{path}},sha256={{digest}},{{len(data)}}\\n")
    members[f"{{INFO}}/RECORD"] = "".join([*record, f"{{INFO}}/RECORD,,\\n"]).encode()
    wheel = f"{{NAME}}-{{VERSION}}-{{tag()}}.whl"
    with zipfile.ZipFile(pathlib.Path(directory) / wheel, "w") as archive:
        for path, data in members.items():
            archive.writestr(zipfile.ZipInfo(path), data)
    return wheel

def tag():
    python = "cp" + sysconfig.get_config_var("py_version_nodot")
    return f"{{python}}-{{python}}-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
"""

C_SOURCE = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#ifndef ANSWER
#define ANSWER 1
#endif
static PyObject *answer(PyObject *self, PyObject *none) {{ return PyLong_FromLong(ANSWER); }}
static PyMethodDef methods[] = {{{{"answer", answer, METH_NOARGS, ""}}, {{NULL, NULL, 0, NULL}}}};
static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "{name}", NULL, -1, methods}};
PyMODINIT_FUNC PyInit_{name}(void) {{ return PyModule_Create(&module); }}
"""


def native_sdist(name: str, version: str = "1.0", *, source: str = "") -> tuple[str, bytes]:
    """Return the filename and bytes of an sdist with one C file, whose build needs a C compiler and nothing else.

    Args:
        name: the distribution and its module, an identifier in small letters.
        version: its version.
        source: the C file; by default a module with a function `answer`, which returns the macro ANSWER.
    """
    members = {
        "PKG-INFO": f"Metadata-Version: 2.2\nName: {name}\nVersion: {version}\n",
        "pyproject.toml": f'[project]\nname = "{name}"\nversion = "{version}"\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": NATIVE_BACKEND.format(name=name, version=version),
        "native.c": source or C_SOURCE.format(name=name),
    }
    return f"{name}-{version}.tar.gz", _packed(f"{name}-{version}", members)


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
