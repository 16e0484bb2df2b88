"""A venv on this node, made from the lock when it is needed, and found again by its key.

Sharing model
- A venv's key is what it is made of: extras, what they lock to, Python, platform, uv. The key is in the directory's
  name, so a venv of another key is never reused and one that actors run from is never changed.
- One process per node and path builds, under a file lock that dies with it; the others wait for the stamp.
- It is built aside, checked against the lock, stamped, and renamed. What a killed builder left is removed by the next.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import platform
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NoReturn

from greenroom.actor_environments import normalised
from greenroom.distributed.lock_reader import UnreadableLockError, locked_closure, read_lock
from greenroom.files import cache_dir, write_aside
from greenroom.process import ProcessError, run
from greenroom.stamps import SCHEMA, STAMP, read_stamp

logger = logging.getLogger(__name__)

DIRECTORY_VARIABLE = "GREENROOM_LOCAL_VENV_DIR"
BUILD_TIMEOUT = 1800.0
"""Seconds for making one venv, and for waiting for another process that makes it."""
UV_VARIABLES = ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "CONDA_PREFIX", "PYTHONHOME", "PYTHONPATH", "UV_PYTHON")
"""Variables of the caller that would make uv, or the Python that it asks, look at another venv."""


class VenvError(RuntimeError):
    """A venv cannot be made or used; the message says what happened, the likely cause, and what to do."""


@dataclass(frozen=True, kw_only=True)
class VenvKey:
    """What a venv is made of. Two venvs of equal keys hold the same.

    Attributes:
        extras: sorted.
        closure: distribution → "<version> <digest of its files' hashes and its source>".
        python: version of its interpreter.
        platform: operating system, processor and C library.
        uv: version of the uv that makes it.
        source: the project's directory when it is a package: its code is not copied into the venv but read from there.
    """

    extras: tuple[str, ...]
    closure: Mapping[str, str]
    python: str
    platform: str
    uv: str
    source: str

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that no other key has."""
        return _digest(json.dumps(asdict(self), sort_keys=True))


@dataclass(frozen=True, kw_only=True)
class UvRun:
    """A `uv run` command of the registry, taken apart.

    Attributes:
        extras: in its order.
        root: the project's directory.
    """

    extras: tuple[str, ...]
    root: Path


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise instead of ending the process."""
        raise VenvError(message)


def parse_uv_run(py_executable: str) -> UvRun:
    """Take a `uv run` command apart.

    Args:
        py_executable: as the registry gives it: `uv run --locked [--extra E]… --directory ROOT`.

    Raises:
        VenvError: it is another command.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--locked", action="store_true", required=True)
    parser.add_argument("--extra", action="append", default=[])
    parser.add_argument("--directory", type=Path, required=True)
    program, *words = shlex.split(py_executable) or [""]
    try:
        if program != "uv" or words[:1] != ["run"]:
            raise VenvError("it does not begin with uv run")
        parsed = parser.parse_args(words[1:])
    except VenvError as error:
        raise VenvError(
            f"no venv can be made for {py_executable!r}: {error} | next: take it from get_actor_python_env"
        ) from None
    return UvRun(extras=tuple(parsed.extra), root=parsed.directory)


def local_directory() -> Path:
    """Return where this node's venvs go: `$GREENROOM_LOCAL_VENV_DIR`, else `venvs` in greenroom's cache directory."""
    own = os.environ.get(DIRECTORY_VARIABLE)
    return Path(own) if own else cache_dir() / "venvs"


def venv_key(command: UvRun, uv: str) -> VenvKey:
    """Return the key of the venv of a command on this node.

    Args:
        command: the command.
        uv: the uv program.

    Raises:
        VenvError: the lock cannot be read, or uv does not run.
    """
    try:
        closure = locked_closure(read_lock(command.root / "uv.lock"), sorted(set(command.extras)))
        version = run([uv, "--version"], timeout=60).stdout.split()[1]
    except UnreadableLockError as error:
        raise VenvError(f"{error} | next: uv lock --directory {command.root}") from error
    except (ProcessError, IndexError) as error:
        raise VenvError(f"uv does not run: {error} | next: install uv on this node") from error
    libc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None
    return VenvKey(
        extras=tuple(sorted(set(command.extras))),
        closure={
            name: f"{locked.version} {_digest(' '.join([*sorted(locked.hashes), locked.source]))}"
            for name, locked in sorted(closure.items())
        },
        python=platform.python_version(),
        platform=f"{platform.system().lower()} {platform.machine()} {libc or 'no glibc'}",
        uv=version,
        source=str(command.root.resolve()) if any(locked.source for locked in closure.values()) else "",
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def create_local_venv(py_executable: str, venv_name: str, *, timeout: float = BUILD_TIMEOUT) -> str:
    """Make a venv on this node, or find it made.

    Args:
        py_executable: `uv run --locked … --directory ROOT`, as the registry gives it.
        venv_name: a name for people, such as the actor's class; part of the directory's name.
        timeout: seconds for making it, and for waiting for another process that makes it.

    Returns:
        The path of its interpreter.

    Raises:
        VenvError: it cannot be made in time, or does not hold what the lock says.
    """
    command = parse_uv_run(py_executable)
    uv = shutil.which("uv") or _bundled_uv()
    key = venv_key(command, uv)
    directory = local_directory()
    venv = directory / f"{venv_name}-{key.digest}"
    if _is_made(venv, key):
        return str(venv / "bin" / "python")
    # Ray brings filelock into every venv that has Ray.
    from filelock import FileLock, Timeout

    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = FileLock(directory / f".{venv.name}.lock")
        deadline = time.monotonic() + timeout
        try:
            lock.acquire(timeout=timeout)
        except Timeout as late:
            raise VenvError(
                f"{venv} is not finished after {timeout:.0f} s of waiting | likely cause: the process that makes it "
                f"({_builder(venv)}) hangs | next: end that process and start again"
            ) from late
        try:
            if not _is_made(venv, key):
                _write_builder(venv)
                _make(venv, key, command, uv, timeout=max(1.0, deadline - time.monotonic()))
        finally:
            lock.release()
    except OSError as error:
        raise VenvError(
            f"{venv} cannot be made: {error} | next: df {directory}; a smaller set, or another disk"
        ) from error
    return str(venv / "bin" / "python")


def _is_made(venv: Path, key: VenvKey) -> bool:
    try:
        stamp = read_stamp(venv)
    except ValueError:
        return False
    return VenvKey(**asdict(stamp)) == key and os.access(venv / "bin" / "python", os.X_OK)


def _make(venv: Path, key: VenvKey, command: UvRun, uv: str, *, timeout: float) -> None:
    for left_over in venv.parent.glob(f".{venv.name}.aside-*"):
        logger.warning("removing %s, which a builder that died left", left_over)
        shutil.rmtree(left_over, ignore_errors=True)
    if venv.exists():
        # Its stamp is missing or says something else: nothing runs from it that could be trusted.
        logger.warning("removing %s, which is not finished", venv)
        shutil.rmtree(venv)
    aside = Path(tempfile.mkdtemp(dir=venv.parent, prefix=f".{venv.name}.aside-"))
    started = time.monotonic()
    logger.info("making %s: %d distributions", venv, len(key.closure))
    try:
        made = aside / "venv"
        _install(made, command, uv, timeout)
        _check(made, key)
        stamp = {"schema": SCHEMA, "set": "+".join(key.extras), **asdict(key), "complete": True}
        write_aside(made / STAMP, json.dumps(stamp, indent=1, sort_keys=True) + "\n")
        made.rename(venv)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    logger.info("made %s in %.1f s", venv, time.monotonic() - started)


def _install(made: Path, command: UvRun, uv: str, timeout: float) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in UV_VARIABLES}
    environment |= {"UV_PROJECT_ENVIRONMENT": str(made), "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1"}
    extras = [word for extra in command.extras for word in ("--extra", extra)]
    steps: list[list[str | Path]] = [
        # Relocatable, since it is renamed when it is finished.
        [uv, "venv", "--quiet", "--relocatable", "--no-project", "--python", sys.executable, made],
        # The same Python by name: uv would replace the venv by one of the project's own choice. Compiled, since it is made
        # once and started from many times: importing Ray alone takes 0.4 s instead of 0.9 s.
        [
            uv,
            "sync",
            "--quiet",
            "--locked",
            "--compile-bytecode",
            "--python",
            sys.executable,
            "--directory",
            command.root,
            *extras,
        ],
    ]
    deadline = time.monotonic() + timeout
    for step in steps:
        try:
            run(step, env=environment, timeout=max(1.0, deadline - time.monotonic()))
        except ProcessError as error:
            late = error.reason.startswith("no end")
            raise VenvError(
                f"uv {step[1]} for {made.parent.name.split('.aside')[0].lstrip('.')}: {error.reason}: "
                f"{' '.join(error.completed.last_lines(3).split()) or 'it said nothing'} | likely cause: "
                f"{'the index does not answer, or the disk is slow' if late else 'uv says it'} | "
                f"next: {shlex.join(map(str, step[:4]))} … on this node"
            ) from error


def installed(venv: Path) -> dict[str, str]:
    """Return the distributions of a venv: normalised name → version."""
    site_packages = [str(path) for path in venv.glob("lib/python3.*/site-packages")]
    return {
        normalised(found.metadata["Name"]): found.version
        for found in distributions(path=site_packages)
        if found.metadata["Name"]
    }


def _check(made: Path, key: VenvKey) -> None:
    settings = (made / "pyvenv.cfg").read_text(encoding="utf-8")
    if f"version_info = {key.python}" not in settings.splitlines():
        raise VenvError(
            f"uv made a venv of another Python than {key.python} | likely cause: the project asks for another one | "
            "next: compare requires-python and .python-version with the Python that runs the driver"
        )
    found = installed(made)
    wanted = {name: locked.split(" ")[0] for name, locked in key.closure.items()}
    # A version that the project computes when it is built is in no lock.
    wanted |= {name: found[name] for name, version in wanted.items() if not version and name in found}
    if {name: _as_number(version) for name, version in found.items()} != {
        name: _as_number(version) for name, version in wanted.items()
    }:
        missing = sorted(wanted.items() - found.items())
        unexpected = sorted(found.items() - wanted.items())
        raise VenvError(
            f"uv made another venv than the lock says: missing {_named(missing)}; unexpected {_named(unexpected)} | "
            "likely cause: an extra that pulls in another | next: uv sync --locked --dry-run with the same extras"
        )


def _as_number(version: str) -> object:
    # Ray brings packaging into every venv that has Ray.
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version)
    except InvalidVersion:
        return version


def _named(items: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {version}" for name, version in items) or "nothing"


def _builder(venv: Path) -> str:
    try:
        return (venv.parent / f".{venv.name}.builder").read_text(encoding="utf-8").strip()
    except OSError:
        return "it has not said who it is"


def _write_builder(venv: Path) -> None:
    write_aside(venv.parent / f".{venv.name}.builder", f"process {os.getpid()} on {platform.node()}\n")


def _bundled_uv() -> str:
    try:
        from uv import find_uv_bin
    except ImportError:
        raise VenvError("there is no uv on this node | next: install uv, or use an image with prebuilt venvs") from None
    return find_uv_bin()


def describe_venv(interpreter: str) -> dict[str, Any]:
    """Return what a node reports of a venv, for comparison with the other nodes: its path, distributions and stamp.

    Raises:
        VenvError: there is no finished venv.
    """
    venv = Path(interpreter).parents[1]
    try:
        stamp = read_stamp(venv)
    except ValueError as error:
        raise VenvError(f"{platform.node()}: {error}") from error
    return {
        "interpreter": interpreter,
        "python": stamp.python,
        "installed": installed(venv),
        "closure": dict(stamp.closure),
    }
