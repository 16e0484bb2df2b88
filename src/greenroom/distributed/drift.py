"""Finished venvs that no longer are what the sources beside them say.

An image's venvs are made from a lock and a manifest. Where newer sources are mounted over it, actors would run
with distributions that nobody asked for; the first import of greenroom from such sources says so.
"""

from __future__ import annotations

import os
import sys
import tomllib
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from greenroom.actor_environments import ACTOR_ENVIRONMENTS, normalised
from greenroom.distributed.lock_reader import Locked, UnreadableLockError, locked_closure, read_lock
from greenroom.stamps import Stamp, prebuilt_actors, read_stamp, set_name

ALLOW = "GREENROOM_ALLOW_DRIFT"
SHOWN = 5
"""Distributions of one venv that a message names."""


class DriftError(ImportError):
    """The venvs of this image were made from other sources than those that are imported."""


def closure_differences(built: Mapping[str, str], locked: Mapping[str, Locked]) -> list[str]:
    """Compare what a venv holds with what a lock says.

    Args:
        built: a stamp's closure.
        locked: what the venv's extras lock to.

    Returns:
        One phrase for each distribution that differs, sorted by its name.
    """
    differences = []
    for name in sorted(built.keys() | locked.keys()):
        if name not in built:
            differences.append(f"{name} {locked[name].version} is locked and not built")
        elif name not in locked:
            differences.append(f"{name} {built[name].split(' ')[0]} is built and not locked")
        else:
            version, _, file_hash = built[name].partition(" ")
            wanted = locked[name]
            if wanted.version and version != wanted.version:
                differences.append(f"{name} {version} is built, {wanted.version} is locked")
            elif what := _other_source(file_hash, wanted):
                differences.append(f"{name} {version} is built from {what}")
    return differences


def _other_source(built: str, wanted: Locked) -> str:
    """Say how what a distribution was built from differs from the locked source; "" when it does not, or nobody knows."""
    kind, _, what = built.partition(":")
    if kind == "git":
        commit, _, directory = what.partition("#")
        here = commit in wanted.source and (
            not directory or f"subdirectory={quote(directory, safe='')}" in wanted.source
        )
        return "" if here or not (wanted.source or wanted.hashes) else "another commit than the locked one"
    if kind == "sha256" and wanted.hashes:
        return "" if built in wanted.hashes else "a file that is not the locked one"
    if kind == "sha256" and wanted.source:
        return "a file, and locked to another source"
    return ""


Closures = Callable[[Sequence[str]], Mapping[str, Locked] | None]
"""What some extras lock to, or None where nothing says so; see `source_closures`."""


def source_closures(source: Path | None) -> Closures:
    """Return how a project's sources say what extras lock to: by `uv.lock`, else by its reviewed closures.

    Args:
        source: the directory of its `pyproject.toml`; None where there are no sources.

    Raises:
        UnreadableLockError: the lock is not one that can be read here.
    """
    if source is None:
        return lambda extras: None
    if (source / "uv.lock").is_file():
        lock = read_lock(source / "uv.lock")
        return lambda extras: locked_closure(lock, extras)
    pyproject = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))
    listing = source / pyproject.get("tool", {}).get("greenroom", {}).get("closures", "closures.txt")
    if not listing.is_file():
        return lambda extras: None
    reviewed = read_reviewed(listing)
    project = pyproject.get("project", {})
    own = {normalised(project["name"]): Locked(version=str(project.get("version", "")), hashes=frozenset())}
    return lambda extras: {**reviewed[name], **own} if (name := set_name(extras)) in reviewed else None


def read_reviewed(listing: Path) -> dict[str, dict[str, Locked]]:
    """Read a listing of reviewed closures: set → distribution → its version.

    Hashes are left out: they are those of the files for the platform that the listing was made for.
    """
    found: dict[str, dict[str, Locked]] = {}
    section: dict[str, Locked] = {}
    for line in listing.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            # What lies in the project has a version and no hash.
            name, version, *_ = line.split(" ", 2)
            section[name] = Locked(version=version, hashes=frozenset())
    return found


def stamp_differences(stamp: Stamp, extras: Sequence[str], closures: Closures) -> list[str]:
    """Compare a stamp with what an actor needs.

    Args:
        stamp: of a finished venv.
        extras: what the table says that the actor needs.
        closures: what the sources say, from `source_closures`.

    Returns:
        One phrase for each difference.

    Raises:
        UnreadableLockError: the lock has nothing for these extras.
    """
    wanted = tuple(sorted(set(map(normalised, extras))))
    if stamp.extras != wanted:
        return [f"built with the extras {', '.join(stamp.extras) or '(none)'}, not {', '.join(wanted) or '(none)'}"]
    locked = closures(wanted)
    return [] if locked is None else closure_differences(stamp.closure, locked)


def find_drift(venv_dir: Path, table: Mapping[str, Sequence[str] | None], closures: Closures) -> dict[str, list[str]]:
    """Compare an image's venvs with the sources.

    Args:
        venv_dir: the image's venv directory.
        table: actor → its extras, from the manifest.
        closures: what the sources say, from `source_closures`.

    Returns:
        Actor → what differs, for each venv that differs. An actor without a venv is none: an image may leave it out.
    """
    found: dict[str, list[str]] = {}
    # Actors of one set share the stamp, and reading the lock for it is what costs.
    known: dict[tuple[Path, tuple[str, ...]], list[str]] = {}
    for actor in prebuilt_actors(venv_dir):
        extras = table.get(actor)
        venv = (venv_dir / actor).resolve()
        if extras is None:
            if actor in table:
                found[actor] = ["built, and the manifest gives it no venv"]
            continue
        key = venv, tuple(extras)
        if key not in known:
            try:
                known[key] = stamp_differences(read_stamp(venv), extras, closures)
            except (ValueError, UnreadableLockError) as error:
                known[key] = [str(error)]
        if known[key]:
            found[actor] = known[key]
    return found


def check_drift(venv_dir: Path, source: Path) -> None:
    """Fail when an image's venvs are not what the sources say; warn instead when GREENROOM_ALLOW_DRIFT is 1.

    Args:
        venv_dir: the image's venv directory.
        source: the project's directory, with `pyproject.toml` and `uv.lock` or its reviewed closures.

    Raises:
        DriftError: they differ; affected venvs and distributions are named.
    """
    try:
        drift = find_drift(venv_dir, ACTOR_ENVIRONMENTS, source_closures(source))
    except UnreadableLockError as error:
        drift = {str(venv_dir): [f"cannot be compared with the lock: {error}"]}
    except ModuleNotFoundError as error:
        # An interpreter that has nothing installed, such as the base image's own, starts no actor either.
        print(f"greenroom: warning: venvs are compared by their extras alone: {error}", file=sys.stderr)
        drift = find_drift(venv_dir, ACTOR_ENVIRONMENTS, source_closures(None))
    if not drift:
        return
    lines = [f"{actor}: {summary(differences)}" for actor, differences in drift.items()]
    message = f"the venvs in {venv_dir} are not what {source} says: {'; '.join(lines)}"
    if os.environ.get(ALLOW) == "1":
        warnings.warn(message, stacklevel=2)
        print(f"greenroom: warning: {message}", file=sys.stderr)
        return
    raise DriftError(
        f"{message} | likely cause: the sources are newer or older than the image | "
        f"next: build the image again, or set {ALLOW}=1 to go on with a warning"
    )


def summary(differences: Sequence[str]) -> str:
    """Return the first differences of a venv, and how many more there are."""
    more = len(differences) - SHOWN
    return ", ".join(differences[:SHOWN]) + (f" and {more} more" if more > 0 else "")
