"""Seeing that a project's lock can be used as it stands, and making it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from uv import find_uv_bin

from greenroom.closures import check_closures, differences, locked_closures, parse, render
from greenroom.console import say
from greenroom.errors import UsageError
from greenroom.files import write_aside
from greenroom.lock import check_lock, uv_lock
from greenroom.process import is_dry_run
from greenroom.project import Project, load_project


@lru_cache(maxsize=1)
def uv_program() -> str:
    """Return the path of the uv that this distribution depends on."""
    return find_uv_bin()


def ready_lock(project: Project) -> None:
    """See that the lock can be used as it stands.

    A project with reviewed closures generates its lock when there is none; any other must have one.

    Raises:
        LockError: it is missing, stale, or not the reviewed one.
    """
    make_missing_lock(project)
    if is_dry_run() and not (project.root / "uv.lock").is_file():
        return
    check_lock(uv_program(), project.root)
    check_closures(uv_program(), project)


def make_missing_lock(project: Project) -> None:
    """Make the lock of a project that generates its own, when there is none yet.

    Raises:
        LockError: it does not resolve.
    """
    if project.closures is not None and not (project.root / "uv.lock").is_file():
        say("no uv.lock yet: resolving")
        uv_lock(uv_program(), project.root)


def update_lock(project: str | Path = ".", *, manifest: str | None = None, accept: bool = False) -> list[str]:
    """Make or update `uv.lock`, and compare it with the reviewed closures.

    Args:
        project: its directory.
        manifest: path of its manifest; overrides the setting.
        accept: make what is locked now the reviewed closures.

    Returns:
        What differs from the reviewed closures, a line each; always empty unless accepted.

    Raises:
        LockError: it does not resolve, or is not the reviewed one (and not accepted).
        UsageError: there is no listing to accept into.
    """
    loaded = load_project(Path(project), manifest=manifest)
    uv = uv_program()
    uv_lock(uv, loaded.root)
    if accept and loaded.closures is None:
        raise UsageError(
            "there is no listing of reviewed closures to accept into",
            next_step='set closures = "closures.txt" under [tool.greenroom] in pyproject.toml',
        )
    if is_dry_run():
        return []
    if loaded.closures is None or not accept:
        check_closures(uv, loaded)
        say("uv.lock is up to date" + (f" and is what {loaded.closures.name} lists" if loaded.closures else ""))
        return []
    listing = locked_closures(uv, loaded)
    before = parse(loaded.closures.read_text(encoding="utf-8")) if loaded.closures.is_file() else {}
    write_aside(loaded.closures, render(listing, loaded.python))
    say(f"wrote {loaded.closures.name}: {len(listing)} sets")
    return differences(before, listing)
