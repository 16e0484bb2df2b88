"""The reviewed closures: a committed, hash-only listing of what every environment set locks to.

A repository whose `uv.lock` is generated, not committed, keeps this listing instead: one section per
set, one line per distribution with its file's hash and no address. A lock that says anything else is
not the reviewed one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from greenroom.errors import LockError
from greenroom.lock import read_closure
from greenroom.manifest import read_rows
from greenroom.project import Project
from greenroom.source_builds import read_rules
from greenroom.stamps import set_name
from greenroom.target import BOOTSTRAP_GLIBC, BOOTSTRAP_PYTHON, Target

REVIEW_MACHINE = "x86_64"
"""The files are chosen for this processor whatever machine checks them; and for the project's Python."""

_HEADER = """# What every environment set locks to, for CPython {python} on linux {machine}.
# Written by `greenroom lock --accept`; every build checks the lock against it.
"""

Listing = dict[str, dict[str, str]]
"""Set name → distribution → "version sha256:hash"."""


def locked_closures(uv: str, project: Project) -> Listing:
    """Return what the lock says of every set of the manifest, skipped or not.

    Raises:
        UsageError, LockError: as `greenroom.lock.read_closure`.
    """
    extras_of = {set_name(row.extras): sorted(set(row.extras)) for row in read_rows(project.manifest)}
    rules = read_rules(project.root / "pyproject.toml")
    target = Target(python=project.python, implementation="cpython", machine=REVIEW_MACHINE, glibc=BOOTSTRAP_GLIBC)
    listing: Listing = {}
    for name in sorted(extras_of):
        closure = read_closure(uv, project.root, extras_of[name], target, rules.wants_source)
        listing[name] = {artifact.name: artifact.identity for artifact in closure.artifacts}
        listing[name] |= {local.name: local.identity for local in closure.locals}
    return listing


def render(listing: Listing, python: str = BOOTSTRAP_PYTHON) -> str:
    """Return a listing, made for this version of Python, as the committed text."""
    sections = [
        f"\n[{name}]\n" + "".join(f"{dist} {what}\n" for dist, what in sorted(closure.items()))
        for name, closure in sorted(listing.items())
    ]
    return _HEADER.format(python=python, machine=REVIEW_MACHINE) + "".join(sections)


def parse(text: str) -> Listing:
    """Read a committed listing.

    Raises:
        LockError: a line is none that `render` writes.
    """
    listing: Listing = {}
    section: dict[str, str] | None = None
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("[") and line.endswith("]"):
            section = listing.setdefault(line[1:-1], {})
            continue
        dist, _, what = line.partition(" ")
        if section is None or not what:
            raise LockError(
                f"the reviewed closures hold a malformed line: {line!r}", next_step="greenroom lock --accept"
            )
        section[dist] = what
    return listing


def differences(reviewed: Listing, locked: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return one line per set that came or went and per change of a distribution; empty when nothing differs."""
    lines = [f"set {name}: no longer in the manifest" for name in sorted(set(reviewed) - set(locked))]
    lines += [f"set {name}: new in the manifest" for name in sorted(set(locked) - set(reviewed))]
    changes: dict[str, list[str]] = {}
    for name in sorted(set(reviewed) & set(locked)):
        before, after = reviewed[name], locked[name]
        for dist in sorted(set(before) | set(after)):
            old, new = before.get(dist), after.get(dist)
            if old != new:
                changes.setdefault(f"{dist}: {_short(old)} -> {_short(new)}", []).append(name)
    return lines + [f"{change} ({', '.join(names)})" for change, names in sorted(changes.items())]


def _short(what: str | None) -> str:
    if what is None:
        return "absent"
    version, _, digest = what.partition(" ")
    return f"{version} {digest[:19]}"


def check_closures(uv: str, project: Project) -> None:
    """Check that the lock is the reviewed one; a project without a listing has nothing to check.

    Raises:
        LockError: it is not; the changed distributions are named.
    """
    if project.closures is None:
        return
    path: Path = project.closures
    if not path.is_file():
        raise LockError(f"no reviewed closures at {path.name}", next_step="greenroom lock --accept, then commit it")
    lines = differences(parse(path.read_text(encoding="utf-8")), locked_closures(uv, project))
    if lines:
        raise LockError(
            f"the lock is not the reviewed one: {'; '.join(lines)}",
            cause="requirements, exclude-newer or the listing changed, or an index serves other files",
            next_step=f"review, then greenroom lock --accept and commit {path.name}",
        )
