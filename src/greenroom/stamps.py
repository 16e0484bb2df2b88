"""The stamp: the record that is written last into a finished venv, and what it says of the venv.

Read by whoever starts actors, on nodes, so this module needs the standard library alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

STAMP = "greenroom-stamp.json"
SCHEMA = 1
SETS = ".sets"
"""Below the image's venv directory: one real directory per environment set. Actors' paths are links to these."""
DEFAULT_VENV_DIR = "/opt/ray_venvs"
NO_EXTRAS_SET = "@base"
"""The set of actors that need a venv without extras; "@" cannot be in an extra's name."""


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """What a finished venv says of itself.

    Attributes:
        extras: sorted.
        closure: distribution → "<version> sha256:<hash of its file>", or the version alone for the project itself.
        python: version of its interpreter.
        platform: operating system, processor and C library.
        uv: version of the uv that installed it.
        source: the directory of the sources that it was made from, for one that was made on a node; "" in an image.
    """

    extras: tuple[str, ...]
    closure: Mapping[str, str]
    python: str
    platform: str
    uv: str
    source: str = ""

    @property
    def versions(self) -> dict[str, str]:
        """Its distributions' versions by name."""
        return {name: built.split(" ")[0] for name, built in self.closure.items()}


def set_name(extras: Sequence[str]) -> str:
    """Return the name of the environment set of some extras."""
    return "+".join(sorted(set(extras))) or NO_EXTRAS_SET


def read_stamp(venv: Path) -> Stamp:
    """Return a venv's stamp.

    Raises:
        ValueError: there is none, or it does not say that the venv is complete; the message says which.
    """
    path = venv / STAMP
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{venv} has no stamp" if venv.is_dir() else f"there is no venv at {venv}") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    try:
        if data["schema"] != SCHEMA or data["complete"] is not True:
            raise ValueError(f"{path} does not say that the venv is complete")
        return Stamp(
            extras=tuple(data["extras"]),
            closure=dict(data["closure"]),
            python=data["python"],
            platform=data["platform"],
            uv=data["uv"],
            source=data.get("source", ""),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is no stamp: {error!r}") from error


def prebuilt_directory() -> Path:
    """Return the directory of an image's venvs: `$VENV_DIR`, else `/opt/ray_venvs`. It may not exist."""
    return Path(os.environ.get("VENV_DIR") or DEFAULT_VENV_DIR)


def prebuilt_actors(directory: Path) -> Iterator[str]:
    """Yield the actors that have a venv in an image's venv directory, sorted by name."""
    if directory.is_dir():
        yield from sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))
