"""Sessions: `nox -l` lists them. Each installs what it needs and calls the same functions as `greenroom`."""

from __future__ import annotations

import atexit
import hashlib
import os
import sys
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.options.sessions = ["lint", "typecheck", "tests"]
nox.options.reuse_existing_virtualenvs = True
nox.options.default_venv_backend = "virtualenv"
nox.options.error_on_missing_interpreters = True


def _leave_with(code: int) -> None:
    """Make nox exit with a command's own code: nox itself knows only 0 and 1, and our codes are documented."""

    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    atexit.register(leave)


def _install(session: nox.Session, *requirements: str) -> None:
    """Install this project, once for each state of pyproject.toml: it is editable, so sources need no second time."""
    state = hashlib.sha256(Path("pyproject.toml").read_bytes()).hexdigest()
    stamp = Path(session.virtualenv.location) / "greenroom-installed"
    if stamp.is_file() and stamp.read_text() == state:
        return
    session.log("installs what it needs; the first time takes half a minute")
    stamp.unlink(missing_ok=True)
    session.install("--quiet", "--editable", ".[pipeline]", *requirements)
    stamp.write_text(state)


def _greenroom(session: nox.Session, *words: str) -> None:
    """Run the console script with the session's own arguments."""
    _install(session)
    try:
        # nox would join stderr with stdout, which is for data alone.
        session.run("greenroom", *words, *session.posargs, stderr=sys.stderr)
    except CommandFailed as error:
        if error.return_code:
            _leave_with(error.return_code)
        raise


def _install_development_tools(session: nox.Session) -> None:
    project = nox.project.load_toml("pyproject.toml")
    _install(session, *nox.project.dependency_groups(project, "dev"))


@nox.session
def image(session: nox.Session) -> None:
    """Build the image and verify it: -- [--skip EXTRA]... [--stage S] [--tag TAG] [--smoke]."""
    _greenroom(session, "image")


@nox.session(default=False)
def verify(session: nox.Session) -> None:
    """Check an image against the manifest and the lock: -- [--image TAG] [--skip EXTRA]... [--json FILE]."""
    _greenroom(session, "verify")


@nox.session(default=False)
def smoke(session: nox.Session) -> None:
    """Create every registered environment in an image and ask each something: -- [--image TAG] [--skip EXTRA]..."""
    _greenroom(session, "smoke")


@nox.session(default=False)
def push(session: nox.Session) -> None:
    """Build, verify, and push what was verified: -- --to REF [--compression gzip|zstd] [--skip EXTRA]... [--json]."""
    _greenroom(session, "push")


@nox.session(default=False)
def lock(session: nox.Session) -> None:
    """Make uv.lock and compare it with the reviewed closures: -- [--accept]."""
    _greenroom(session, "lock")


@nox.session(default=False)
def plan(session: nox.Session) -> None:
    """Show every actor, in or out and why: -- [--skip EXTRA]... [--stage S] [--json]."""
    _greenroom(session, "plan")


@nox.session(default=False)
def matrix(session: nox.Session) -> None:
    """Print the variants of skip lists as one line of JSON: -- [--format json|github]."""
    _greenroom(session, "matrix")


@nox.session
def tests(session: nox.Session) -> None:
    """Run every test, with a real engine and real images: -- [pytest arguments]."""
    _install_development_tools(session)
    session.run("pytest", *session.posargs)


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Measure everything side by side on a quiet machine: -- [--only FIGURE...] [--out FILE]."""
    _install_development_tools(session)
    session.run("python", "bench/run.py", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting."""
    _install_development_tools(session)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def typecheck(session: nox.Session) -> None:
    """Check types, tests and sessions included."""
    _install_development_tools(session)
    session.run("mypy")
