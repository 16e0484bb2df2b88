"""Read an image from inside: print, as JSON, what its venvs are. Changes and trusts nothing.

Runs in a container as a non-root user on a read-only root without a network, fed through standard input:
`python3 -I - <venv directory> < image_inspector.py`. Standard library alone.
"""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Iterator

SETS = ".sets"
STAMP = "greenroom-stamp.json"
PROBE_TIMEOUT = 120
SKIPPED_ROOTS = {"/proc", "/sys", "/dev"}
_LEFTOVER_NAMES = re.compile(
    r"(.*\.whl|uv\.lock|\.netrc|_netrc|pip\.conf|uv\.toml|\.pypirc|direct_url\.json|\.uv_cache|uv_cache\.json|CACHEDIR\.TAG)$"
)
_LEFTOVER_DIRECTORIES = re.compile(r".*/(\.cache/(uv|pip)|uv/(wheels|archive|simple|sdists|built-wheels)-v\d+|\.scratch)$")
_BUNDLED = re.compile(r"/usr/share/python-wheels/|/ensurepip/_bundled/|/usr/(local/)?lib/python3[^/]*/test/")
"""Wheels that interpreters and Debian ship for their own `ensurepip`; they are the base image's."""

INTERPRETER_PROBE = """
import importlib.metadata as m, json, sys
print(json.dumps({
    "prefix": sys.prefix, "version": sys.version.split()[0],
    "distributions": sorted([d.metadata["Name"] or "", d.version or ""] for d in m.distributions()),
}))
"""


def is_leftover(path: str, is_directory: bool) -> bool:
    """Say whether a path is something that a build must not leave in an image: a cache, wheel, lock or credential."""
    if is_directory:
        return bool(_LEFTOVER_DIRECTORIES.match(path))
    return bool(_LEFTOVER_NAMES.match(os.path.basename(path))) and not _BUNDLED.search(path)


def walk_root() -> "tuple[list[str], list[str]]":
    """Walk the whole root file system; return suspicious leftovers, and directories that this user cannot read."""
    leftovers: "list[str]" = []
    unreadable: "list[str]" = []

    def note(error: OSError) -> None:
        unreadable.append(str(error.filename))

    for directory, names, files in os.walk("/", onerror=note):
        names[:] = [name for name in names if os.path.join(directory, name) not in SKIPPED_ROOTS]
        leftovers += [path for name in names if is_leftover(path := os.path.join(directory, name), True)]
        leftovers += [path for name in files if is_leftover(path := os.path.join(directory, name), False)]
    return sorted(leftovers), sorted(unreadable)


def links_below(top: Path) -> "Iterator[Path]":
    """Yield every symbolic link below a directory, without following any."""
    for directory, names, files in os.walk(top):
        for name in names + files:
            path = Path(directory, name)
            if path.is_symlink():
                yield path


def bad_links(venv_dir: Path) -> "list[dict[str, str]]":
    """Return links below the venv directory that dangle or lead out of it; a venv's interpreter link may lead out."""
    bad = []
    inside = os.path.realpath(venv_dir)
    for link in links_below(venv_dir):
        real = os.path.realpath(link)
        row = {"path": str(link), "to": os.readlink(link)}
        if real != inside and not real.startswith(inside + os.sep):
            is_interpreter = link.parent.name == "bin" and re.fullmatch(r"python[0-9.]*", link.name)
            if not is_interpreter or (real + os.sep).startswith(("/root/", "/home/")):
                bad.append({**row, "why": "leads outside"})
                continue
        if not os.path.exists(link):
            bad.append({**row, "why": "dangles"})
    return bad


def read_venv(path: Path) -> "dict[str, Any]":
    """Return what one actor's venv is: its stamp, and what its own interpreter says."""
    result: "dict[str, Any]" = {"real": os.path.realpath(path), "stamp": None, "interpreter": None, "error": ""}
    try:
        result["stamp"] = json.loads((path / STAMP).read_text(encoding="utf-8"))
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        result["stamp"] = {"unreadable": str(error)}
    command = [str(path / "bin" / "python"), "-I", "-B", "-c", INTERPRETER_PROBE]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=PROBE_TIMEOUT
        )
        if done.returncode == 0:
            result["interpreter"] = json.loads(done.stdout.decode())
        else:
            result["error"] = done.stderr.decode(errors="replace").strip()[-500:] or f"exit code {done.returncode}"
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        result["error"] = str(error)
    return result


def wrapper_targets() -> "dict[str, str]":
    """Return each wrapper in /usr/local/bin and what it says."""
    wrappers = {}
    for path in sorted(Path("/usr/local/bin").glob("python-*")):
        wrappers[path.name] = path.read_text(errors="replace") if os.access(path, os.R_OK | os.X_OK) else "not executable"
    return wrappers


def inspect(venv_dir: Path) -> "dict[str, Any]":
    """Return everything that `greenroom.verify` compares."""
    entries = sorted(os.listdir(venv_dir)) if venv_dir.is_dir() else []
    venvs = [name for name in entries if name != SETS and (venv_dir / name).is_dir()]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        read = list(pool.map(read_venv, [venv_dir / name for name in venvs]))
    leftovers, unreadable = walk_root()
    return {
        "uid": os.getuid(),
        "exists": venv_dir.is_dir(),
        "entries": entries,
        "kinds": {n: "link" if (venv_dir / n).is_symlink() else "directory" if n in venvs else "file" for n in entries},
        "sets": sorted(os.listdir(venv_dir / SETS)) if (venv_dir / SETS).is_dir() else [],
        "venvs": dict(zip(venvs, read)),
        "bad_links": bad_links(venv_dir) if venv_dir.is_dir() else [],
        "leftovers": leftovers,
        "unreadable": unreadable,
        "wrappers": wrapper_targets(),
    }


if __name__ == "__main__":
    print(json.dumps(inspect(Path(sys.argv[1]))))
