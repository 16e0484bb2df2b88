"""What an image takes, from its plan alone: bytes to fetch, bytes unpacked, layers, and disk while it is built. Pure.

- The lock says how large every file is, and not what is in it. That follows from its kind by ratios that were measured
  on real wheels: an estimate is for the question whether there is room, and right within a factor of two.
- A distribution counts once, however many venvs have it: the image has its files once.
- What a disk needs is what is on it at the end of a build from nothing. Nothing of it goes before: the engine keeps
  the fetched files, the copies of them that the slots read, and the layers, all as its build cache.
- Not in it are the base image, which is there before, the project's own sources, and what a compiler writes meanwhile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from greenroom.lock import Artifact
from greenroom.plan import Plan
from greenroom.slots import LAYERS, STAGE_LAYERS

RATIOS = {
    "pure": (4.0, 3.0),
    "native": (2.8, 0.35),
    "library": (1.5, 0.0),
    "source": (1.0, 0.5),
}
"""Kind of file → bytes of unpacked files, and of bytecode, for each of its bytes.

Measured on the 101 files of bench/post-training, installed (437 MB, 1.35 GB unpacked, 0.3 GB of bytecode), and on the
lists of contents of the 40 largest wheels of examples/post-training (6.0 of 6.6 GB): pure 3.5 and 4.6, native 3.0 and 2.7,
library 1.5. Bytecode is 1.1 times as large as its sources. What is built from source counts as much as its source.
"""

PACKED_BYTECODE = 0.3
"""What of bytecode is left in a compressed layer. Everything else is about as large there as in its wheel."""

TOOLS_BYTES = 120_000_000
"""uv and the libraries of the build's own scripts, twice; and again where something is compiled."""

ON_DISK = 1.15
"""What a byte takes on the engine's disk: blocks are not filled, and every set has its directories. Measured on
bench/post-training, whose build leaves 2.87 GB on an empty engine, of 2.5 GB of content."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What an image takes, in bytes.

    Attributes:
        download_bytes: of all files, as the lock says.
        unpacked_bytes: of the venvs' files, each counted once, without bytecode.
        bytecode_bytes: what bytecode adds to them.
        layers: what the image has on top of its base image.
        tools_bytes: what the build itself needs.
        unknown: the files whose size the lock does not say, sorted; they count nothing here.
    """

    download_bytes: int
    unpacked_bytes: int
    bytecode_bytes: int
    layers: int
    tools_bytes: int
    unknown: tuple[str, ...]

    def disk_bytes(self, *, bytecode: bool = True, packed: bool = False, twice: bool = False) -> int:
        """Return what the engine's disk needs for a build from nothing.

        Args:
            bytecode: whether sources are compiled.
            packed: whether the engine keeps every layer compressed as well.
            twice: whether the image is built a second time without any cache, and both are exported to be compared.
        """
        files = self.unpacked_bytes + (self.bytecode_bytes if bytecode else 0)
        # In each build: the tools, the slots' copies of the fetched files, and the layers.
        each = self.tools_bytes + self.download_bytes + files
        needed = self.download_bytes + each
        if packed:
            needed += self.download_bytes + round(PACKED_BYTECODE * self.bytecode_bytes if bytecode else 0)
        if twice:
            # Both builds have the same layers, and an export has each once.
            needed += each + files
        return round(needed * ON_DISK)

    def to_json(self) -> dict[str, object]:
        """Return the estimate as a JSON value; `disk_bytes` is that of a usual build."""
        return {**dataclasses.asdict(self), "disk_bytes": self.disk_bytes()}

    def one_line(self) -> str:
        """Return the estimate as a line for people."""
        compiled = self.unpacked_bytes + self.bytecode_bytes
        line = (
            f"estimate: {readable(self.download_bytes)} to fetch, {readable(self.unpacked_bytes)} unpacked"
            f" ({readable(compiled)} with bytecode), {self.layers} layers on the base image;"
            f" a build needs {readable(self.disk_bytes())} of disk"
        )
        if self.unknown:
            line += f"; without {', '.join(self.unknown)}, whose size the lock does not say"
        return line


def estimate(plan: Plan) -> Estimate:
    """Estimate what an image takes.

    Args:
        plan: what it holds.
    """
    return Estimate(
        download_bytes=sum(artifact.size for artifact in plan.artifacts),
        unpacked_bytes=_weigh(plan.artifacts, 0),
        bytecode_bytes=_weigh(plan.artifacts, 1),
        # The stages follow each other, so the last one has those before it.
        layers=LAYERS + STAGE_LAYERS * plan.last_place,
        tools_bytes=TOOLS_BYTES * (2 if plan.last_place else 1),
        unknown=tuple(sorted(artifact.filename for artifact in plan.artifacts if not artifact.size)),
    )


def _weigh(artifacts: Iterable[Artifact], column: int) -> int:
    return round(sum(artifact.size * RATIOS[kind_of(artifact)][column] for artifact in artifacts))


def kind_of(artifact: Artifact) -> str:
    """Return the kind of a file, by its name's tags: "pure" Python, "native" extension modules, "library" or "source".

    A library is what fits any Python of a platform (`py3-none-manylinux…`): shared libraries or programs, such as those
    of CUDA, and hardly any Python.
    """
    if artifact.kind != "wheel":
        return "source"
    # Name and version may have hyphens in an old file's name; the three tags are last (PEP 427).
    _, _, abi, platform = artifact.filename.removesuffix(".whl").rsplit("-", 3)
    if platform == "any":
        return "pure"
    return "library" if abi == "none" else "native"


def readable(size: float) -> str:
    """Return a number of bytes with two or three digits and its unit, as in "6.6 GB" and "437 MB"."""
    for limit, unit in ((1e9, "GB"), (1e6, "MB")):
        if size >= limit * 0.9995:
            number = size / limit
            return f"{number:.1f} {unit}" if number < 99.95 else f"{number:.0f} {unit}"
    return f"{size / 1e3:.0f} kB"
