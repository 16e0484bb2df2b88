"""Read an image from inside: print, as JSON, what its venvs are. Changes and trusts nothing.

Runs in a container as a non-root user on a read-only root without a network, fed through standard input:
`python3 -I - <venv directory> < image_inspector.py`. Standard library alone.
"""

import base64
import csv
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BufferedReader
from pathlib import Path
from typing import Any

SETS = ".sets"
STAMP = "greenroom-stamp.json"
PROBE_TIMEOUT = 120
SKIPPED_ROOTS = {"/proc", "/sys", "/dev"}
_LEFTOVER_NAMES = frozenset(
    [
        "uv.lock",
        ".netrc",
        "_netrc",
        "pip.conf",
        "uv.toml",
        ".pypirc",
        "direct_url.json",
        ".uv_cache",
        "uv_cache.json",
        "CACHEDIR.TAG",
    ]
)
_LEFTOVER_DIRECTORIES = re.compile(
    r".*/(\.cache/(uv|pip)|uv/(wheels|archive|simple|sdists|built-wheels)-v\d+|\.scratch)$"
)
_BUNDLED = re.compile(r"/usr/share/python-wheels/|/ensurepip/_bundled/|/usr/(local/)?lib/python3[^/]*/test/")
"""Wheels that interpreters and Debian ship for their own `ensurepip`; they are the base image's."""

_OF_THE_VENV = re.compile(
    r"pyvenv\.cfg|lib64|greenroom-stamp\.json"
    r"|bin/(python[0-9.]*|activate(\.(bat|csh|fish|nu|ps1|xsh))?|activate_this\.py|(deactivate|pydoc)\.bat)"
)
"""What a venv has before anything is installed into it, and the stamp."""

INTERPRETER_PROBE = """
import json, sys
answer = {"prefix": sys.prefix, "version": sys.version.split()[0]}
if sys.argv[1:] == ["distributions"]:
    import importlib.metadata
    answer["distributions"] = sorted([d.name or "", d.version or ""] for d in importlib.metadata.distributions())
print(json.dumps(answer))
"""


def is_leftover(path: str, is_directory: bool) -> bool:
    """Say whether a path is something that a build must not leave in an image: a cache, wheel, lock or credential."""
    if is_directory:
        return bool(_LEFTOVER_DIRECTORIES.match(path))
    name = path[path.rfind("/") + 1 :]
    return (name in _LEFTOVER_NAMES or name.endswith(".whl")) and not _BUNDLED.search(path)


def recorded_wheels(site_packages: Path) -> "set[str]":
    """Return the wheels that installed distributions bring as their own files (as virtualenv does), from their RECORDs."""
    found = set()
    for record in site_packages.glob("*.dist-info/RECORD"):
        with record.open(newline="", encoding="utf-8") as file:
            found |= {str(site_packages / row[0]) for row in csv.reader(file) if row and row[0].endswith(".whl")}
    return found


def unowned(paths: "list[str]", venv_dir: Path) -> "list[str]":
    """Return the paths that belong to no installed distribution."""
    owned: set[str] = set()
    for directory in {path.split("/site-packages/")[0] for path in paths if path.startswith(f"{venv_dir}/{SETS}/")}:
        owned |= recorded_wheels(Path(directory, "site-packages"))
    return [path for path in paths if path not in owned]


class Walk:
    """One walk over the whole root file system; images hold hundreds of thousands of entries.

    Attributes:
        leftovers: suspicious paths.
        unreadable: directories that this user may not read.
        links: symbolic links below the venv directory.
    """

    def __init__(self, venv_dir: Path) -> None:
        self.leftovers: list[str] = []
        self.unreadable: list[str] = []
        self.links: list[str] = []
        self._inside = str(venv_dir) + "/"
        directories = ["/"]
        while directories:
            directories += self._read(directories.pop())
        self.leftovers = unowned(sorted(self.leftovers), venv_dir)
        self.unreadable.sort()
        self.links.sort()

    def _read(self, directory: str) -> "list[str]":
        below = []
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.is_symlink():
                        if entry.path.startswith(self._inside):
                            self.links.append(entry.path)
                        continue
                    is_directory = entry.is_dir()
                    if is_directory and entry.path not in SKIPPED_ROOTS:
                        below.append(entry.path)
                    if is_leftover(entry.path, is_directory):
                        self.leftovers.append(entry.path)
        except OSError:
            self.unreadable.append(directory)
        return below


def bad_links(links: "list[str]", venv_dir: Path) -> "list[dict[str, str]]":
    """Return links that dangle or lead out of the venv directory; a venv's interpreter link may lead out."""
    bad = []
    inside = os.path.realpath(venv_dir)
    for link in links:
        real = os.path.realpath(link)
        row = {"path": link, "to": os.readlink(link)}
        if real != inside and not real.startswith(inside + os.sep):
            is_interpreter = re.search(r"/bin/python[0-9.]*$", link)
            if not is_interpreter or (real + os.sep).startswith(("/root/", "/home/")):
                bad.append({**row, "why": "leads outside"})
                continue
        if not os.path.exists(link):
            bad.append({**row, "why": "dangles"})
    return bad


class Contents:
    """The files of one set against the RECORDs of its distributions.

    Every recorded file must be there with its recorded hash, and nothing else may be: not a .pth or
    sitecustomize.py, no package without a distribution, no bytecode of another source. Where several distributions
    record a path, the bytes of any of them are right.

    Attributes:
        faults: what is wrong, a line each, sorted.
    """

    def __init__(self, directory: str, reported: "frozenset[str]") -> None:
        """Read a set.

        Args:
            directory: the set.
            reported: paths that another check names already.
        """
        self.faults: list[str] = []
        self._directory = directory
        self._recorded: dict[str, set[str]] = {}
        found = self._files()
        for name in found:
            if re.fullmatch(r"lib/python[0-9.]+/site-packages/[^/]+\.dist-info/RECORD", name):
                self._read_record(name)
        names = (name for name in found if f"{directory}/{name}" not in reported)
        self.faults += [fault for name in names if (fault := self._fault(name))]
        self.faults += [f"{name} is missing" for name in set(self._recorded) - found]
        self.faults.sort()

    def _files(self) -> "set[str]":
        found = set()

        def unreadable(error: OSError) -> None:
            self.faults.append(f"{os.path.relpath(error.filename, self._directory)} cannot be read")

        for parent, directories, files in os.walk(self._directory, onerror=unreadable):
            below = os.path.relpath(parent, self._directory)
            links = [name for name in directories if os.path.islink(os.path.join(parent, name))]
            found |= {os.path.normpath(os.path.join(below, name)) for name in files + links}
        return found

    def _read_record(self, record: str) -> None:
        site_packages = os.path.dirname(os.path.dirname(record))
        try:
            with open(os.path.join(self._directory, record), newline="", encoding="utf-8") as file:
                for row in csv.reader(file):
                    if row:
                        name = os.path.normpath(os.path.join(site_packages, row[0]))
                        self._recorded.setdefault(name, set()).add(row[1] if len(row) > 1 else "")
        except (OSError, ValueError, csv.Error) as error:
            self.faults.append(f"{record} cannot be read: {error}")

    def _fault(self, name: str) -> "str | None":
        if _OF_THE_VENV.fullmatch(name):
            return None
        path = f"{self._directory}/{name}"
        try:
            if (hashes := self._recorded.get(name)) is not None:
                right = not os.path.islink(path) and ("" in hashes or any(_has_hash(path, each) for each in hashes))
                return None if right else f"{name} is not what its distribution recorded"
            source = _source_of(name)
            if source not in self._recorded or os.path.islink(path):
                return f"{name} is of no installed distribution"
            right = _is_bytecode_of(path, f"{self._directory}/{source}")
            return None if right else f"{name} is not the bytecode of its source"
        except (OSError, ValueError):
            return f"{name} cannot be read"


_digests: "dict[tuple[int, int, str], bytes]" = {}
"""What was read of a file already: sets share their files, as links to the same one."""


def _digest(path: str, kind: str, read: "Callable[[BufferedReader], bytes]") -> bytes:
    status = os.stat(path)
    key = (status.st_dev, status.st_ino, kind)
    if key not in _digests:
        with open(path, "rb") as file:
            _digests[key] = read(file)
    return _digests[key]


def _has_hash(path: str, recorded: str) -> bool:
    algorithm, _, wanted = recorded.partition("=")
    found = _digest(path, algorithm, lambda file: hashlib.file_digest(file, algorithm).digest())
    return base64.urlsafe_b64encode(found).decode().rstrip("=") == wanted


def _source_of(name: str) -> str:
    """Return the source of a compiled file, or "" when it cannot be one."""
    try:
        return importlib.util.source_from_cache(name) if name.endswith(".pyc") else ""
    except ValueError:
        return ""


def _is_bytecode_of(path: str, source: str) -> bool:
    """Say whether a compiled file names the present bytes of its source (PEP 552)."""
    named = _digest(path, "compiled", lambda file: file.read(16)[8:])
    return named == _digest(source, "source", lambda file: importlib.util.source_hash(file.read()))


def ask_interpreter(path: Path, *words: str) -> "dict[str, Any]":
    """Return what a venv's own interpreter says, or {"error": why it does not}."""
    command = [str(path / "bin" / "python"), "-I", "-B", "-c", INTERPRETER_PROBE, *words]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_TIMEOUT)
        if done.returncode == 0:
            answer: dict[str, Any] = json.loads(done.stdout.decode())
            return answer
        return {"error": done.stderr.decode(errors="replace").strip()[-500:] or f"exit code {done.returncode}"}
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return {"error": str(error)}


def read_stamp(path: Path) -> "dict[str, Any] | None":
    """Return a venv's stamp, None when it has none, or {"unreadable": why} when it is no JSON object."""
    try:
        stamp = json.loads((path / STAMP).read_text(encoding="utf-8"))
        return stamp if isinstance(stamp, dict) else {"unreadable": f"not an object but a {type(stamp).__name__}"}
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return {"unreadable": str(error)}


def sees_system(path: Path) -> bool:
    """Say whether a venv also imports what is installed in its base interpreter."""
    try:
        text = (path / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    pairs = [line.partition("=")[::2] for line in text.lower().splitlines()]
    return ("include-system-site-packages", "true") in [(key.strip(), value.strip()) for key, value in pairs]


def read_venvs(paths: "list[Path]", reported: "frozenset[str]" = frozenset()) -> "dict[str, dict[str, Any]]":
    """Return, for every actor's venv, its stamp, what its interpreter says and what is wrong with its files.

    Every actor's interpreter is started; what is installed is read once per real directory, since actors
    that share one directory share that too.
    """
    first_of = {os.path.realpath(path): path for path in reversed(paths)}
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        contents = dict(
            zip(first_of, pool.map(lambda path: ask_interpreter(path, "distributions"), first_of.values()), strict=True)
        )
        others = [path for path in paths if path not in first_of.values()]
        answers = dict(zip(others, pool.map(ask_interpreter, others), strict=True))
    faults = {real: Contents(real, reported).faults for real in first_of}
    venvs = {}
    for path in paths:
        real = os.path.realpath(path)
        answer = dict(answers.get(path, contents[real]))
        answer.setdefault("distributions", contents[real].get("distributions", []))
        answer["program"] = os.path.realpath(path / "bin" / "python")
        answer["sees_system"] = sees_system(path)
        venvs[path.name] = {"real": real, "stamp": read_stamp(path), "interpreter": answer, "faults": faults[real]}
    return venvs


def wrapper_targets() -> "dict[str, str]":
    """Return each wrapper in /usr/local/bin and what it says."""
    wrappers = {}
    for path in sorted(Path("/usr/local/bin").glob("python-*")):
        wrappers[path.name] = (
            path.read_text(errors="replace") if os.access(path, os.R_OK | os.X_OK) else "not executable"
        )
    return wrappers


def inspect(venv_dir: Path) -> "dict[str, Any]":
    """Return everything that `greenroom.verify` compares."""
    entries = sorted(os.listdir(venv_dir)) if venv_dir.is_dir() else []
    venvs = [name for name in entries if name != SETS and (venv_dir / name).is_dir()]
    walk = Walk(venv_dir)
    outside = bad_links(walk.links, venv_dir)
    reported = frozenset([*(link["path"] for link in outside), *walk.leftovers])
    return {
        "uid": os.getuid(),
        "python": os.path.realpath(sys.executable),
        "exists": venv_dir.is_dir(),
        "entries": entries,
        "kinds": {n: "link" if (venv_dir / n).is_symlink() else "directory" if n in venvs else "file" for n in entries},
        "sets": sorted(os.listdir(venv_dir / SETS)) if (venv_dir / SETS).is_dir() else [],
        "venvs": read_venvs([venv_dir / name for name in venvs], reported),
        "bad_links": outside,
        "leftovers": walk.leftovers,
        "unreadable": walk.unreadable,
        "wrappers": wrapper_targets(),
    }


if __name__ == "__main__":
    print(json.dumps(inspect(Path(sys.argv[1]))))
