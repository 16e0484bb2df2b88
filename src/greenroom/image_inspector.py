"""Read an image from inside: print, as JSON, what its venvs are. Changes and trusts nothing.

Runs in a container as a non-root user on a read-only root without a network, fed through standard input:
`python3 -I - <venv directory> < image_inspector.py`. Standard library alone.
"""

import csv
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
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


def read_venvs(paths: "list[Path]") -> "dict[str, dict[str, Any]]":
    """Return, for every actor's venv, its stamp and what its interpreter says.

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
    venvs = {}
    for path in paths:
        real = os.path.realpath(path)
        answer = dict(answers.get(path, contents[real]))
        answer.setdefault("distributions", contents[real].get("distributions", []))
        venvs[path.name] = {"real": real, "stamp": read_stamp(path), "interpreter": answer}
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
    return {
        "uid": os.getuid(),
        "exists": venv_dir.is_dir(),
        "entries": entries,
        "kinds": {n: "link" if (venv_dir / n).is_symlink() else "directory" if n in venvs else "file" for n in entries},
        "sets": sorted(os.listdir(venv_dir / SETS)) if (venv_dir / SETS).is_dir() else [],
        "venvs": read_venvs([venv_dir / name for name in venvs]),
        "bad_links": bad_links(walk.links, venv_dir),
        "leftovers": walk.leftovers,
        "unreadable": walk.unreadable,
        "wrappers": wrapper_targets(),
    }


if __name__ == "__main__":
    print(json.dumps(inspect(Path(sys.argv[1]))))
