"""The store of compiled wheels: a directory that outlives the builder, with one entry for each key.

    <store>/<key>/<wheel>      the wheel
    <store>/<key>/entry.json   what it was made from, and the wheel's own hash

- A key is the digest of all that decides a wheel: the source's hash, how it is built, uv, the interpreter and
  platform, and the environment that compiles it. Another key is another wheel: nothing is reused by its name.
- An entry is written aside and renamed, so there is none or a whole one. It is read only when its key is that of
  its description and its wheel has the recorded hash.
- The build reads entries of the keys that its plan needs, and the host keeps what the build had to compile.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from greenroom.errors import BuildError, UsageError
from greenroom.files import cache_dir
from greenroom.lock import Artifact
from greenroom.process import is_dry_run
from greenroom.source_builds import BuildSettings
from greenroom.target import Target

ENTRY = "entry.json"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A compiled wheel in a store.

    Attributes:
        key: its key.
        wheel: the wheel's path.
        sha256: the wheel's hash.
        made_from: what decides it, as `describe` gives it.
    """

    key: str
    wheel: Path
    sha256: str
    made_from: Mapping[str, Any]


def describe(
    artifact: Artifact,
    settings: BuildSettings,
    *,
    requires: Sequence[Artifact],
    exclude_newer: str,
    target: Target,
    uv: str,
    environment: str,
) -> dict[str, Any]:
    """Return all that decides what a wheel built from source is, as a JSON value.

    Args:
        artifact: the source.
        settings: how it is built.
        requires: what is in its build environment, when that is not isolated.
        exclude_newer: the limit on the age of build requirements, as uv takes it.
        target: the interpreter and platform that it is built for.
        uv: version of the uv that builds it.
        environment: digest of the image that compiles it (see `greenroom.container.environment_digest`).
    """
    return {
        "name": artifact.name,
        "version": artifact.version,
        "source": artifact.sha256,
        "settings": dataclasses.asdict(settings),
        "requires": sorted(other.sha256 for other in requires),
        "exclude_newer": exclude_newer,
        # Wheels are built for a minor version of Python, not for its patch releases.
        "target": {**dataclasses.asdict(target), "python": target.python_minor},
        "uv": uv,
        "environment": environment,
    }


def key_of(made_from: Mapping[str, Any]) -> str:
    """Return the key of a description: 32 hexadecimal digits."""
    text = json.dumps(made_from, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def default_store() -> Path:
    """Return the store's directory: `$GREENROOM_WHEEL_STORE`, else `wheels` in the cache directory."""
    own = os.environ.get("GREENROOM_WHEEL_STORE")
    return Path(own) if own else cache_dir() / "wheels"


def read_entry(directory: Path) -> Entry:
    """Read an entry.

    Args:
        directory: `<store>/<key>`.

    Raises:
        ValueError: it is no entry, or it is not what its key and its hash say.
    """
    try:
        data = json.loads((directory / ENTRY).read_text(encoding="utf-8"))
        wheel = directory / Path(data["wheel"]).name
        made_from, recorded = data["made_from"], data["sha256"]
        if not {"name", "version"} <= made_from.keys():
            raise ValueError("its description names no distribution")
        with wheel.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{directory} holds no compiled wheel: {error}") from error
    if key_of(made_from) != directory.name:
        raise ValueError(f"{directory} is not what its key says: it was renamed or its description was edited")
    if found != recorded:
        raise ValueError(f"{wheel} has sha256 {found}, not the recorded {recorded}")
    return Entry(key=directory.name, wheel=wheel, sha256=found, made_from=made_from)


def entries(store: Path) -> Iterator[Entry]:
    """Yield the entries of a store, sorted by key.

    Raises:
        ValueError: an entry is damaged.
    """
    for directory in _directories(store):
        yield read_entry(directory)


def _directories(store: Path) -> list[Path]:
    if not store.is_dir():
        return []
    return sorted(path for path in store.iterdir() if path.is_dir() and not path.name.startswith("."))


def keep(store: Path, wheel: Path, made_from: Mapping[str, Any]) -> Entry:
    """Put a wheel into a store; an entry that is there stays.

    Args:
        store: the store's directory, made when missing.
        wheel: the wheel.
        made_from: what decides it, as `describe` gives it.

    Returns:
        The entry.

    Raises:
        BuildError: another command holds the store for too long.
        OSError: the store cannot be written.
    """
    # Imported here: the build reads stores, without the libraries of the host.
    from greenroom.locks import held

    key = key_of(made_from)
    store.mkdir(parents=True, exist_ok=True)
    with held(store / ".lock", BuildError):
        try:
            return read_entry(store / key)
        except ValueError:
            # None yet, or a damaged one.
            _remove(store / key)
        with tempfile.TemporaryDirectory(dir=store, prefix=f".{key}.") as directory:
            aside = Path(directory) / key
            aside.mkdir()
            shutil.copyfile(wheel, aside / wheel.name)
            with wheel.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            record = {"wheel": wheel.name, "sha256": sha256, "made_from": made_from}
            (aside / ENTRY).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            aside.rename(store / key)
        return read_entry(store / key)


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def copy_entries(source: Path, target: Path) -> list[Entry]:
    """Copy every entry of a store into another one, as an export or an import does.

    Args:
        source: the store that has them.
        target: the store that gets those that it lacks.

    Returns:
        The entries, as they are in the target now.

    Raises:
        UsageError: the source is no directory, holds no entry, or holds a damaged one; nothing is copied then.
    """
    if not _directories(source):
        raise UsageError(
            f"{source} holds no compiled wheels",
            cause="nothing was compiled yet, or it is another directory",
            next_step="greenroom wheels list",
        )
    try:
        found = list(entries(source))
        if is_dry_run():
            for entry in found:
                print(f"copy {entry.wheel.parent} to {target}")
            return found
        return [keep(target, entry.wheel, entry.made_from) for entry in found]
    except ValueError as error:
        raise UsageError(str(error), cause="the copy is damaged", next_step="remove that directory") from error
