"""Slots: which image layer a distribution's files go into.

- A slot is a group of distributions that forms one layer, whichever environment sets need them.
- The assignment depends on a distribution's name and size alone, never on the others, so one change
  moves nothing else: bumping one small package changes one layer.
- Large wheels come first in the chain, each alone or with few: they change least often, and a change
  re-runs only what comes after it. The many small ones share the last slots.
- A file that grows or shrinks across the border of two tiers changes two layers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from greenroom.errors import BuildError
from greenroom.lock import Artifact

TIERS = ((3_000_000, 12), (300_000, 6), (0, 4))
"""(a file above this many bytes, slots of its tier), in the order of the chain.

An image may have 127 layers and base images bring a few. In the measured workload (20 venvs, 437 MB of wheels) 61 of 101
files are below 300 kB, and each of their four slots holds at most 0.4 % of the bytes, so that a bump of a small package
changes little; the few large ones change seldom and hardly share a layer."""

SLOTS = sum(slots for _, slots in TIERS)
FETCH_GROUPS = (range(4), range(4, 8), range(8, 12), range(12, SLOTS))
"""Slots whose wheels one step fetches. A bump copies its group's wheels again; a step costs half a second of a core."""

LAYERS = SLOTS + 2
"""What an image has on top of its base image: the slots, the project, and the finished venvs."""
STAGE_LAYERS = 2
"""What each source-built stage adds: its wheels, and its finished venvs."""
ENGINE_LAYERS = 127
"""The most layers that an image may have: overlay2 mounts no more, and says "max depth exceeded" when it is run."""
LAYER_LIMIT_BYTES = 10_000_000_000
"""What the stricter of the common registries take as one layer, compressed (Huawei Cloud's SWR documents 10 GB)."""


def slot_of(artifact: Artifact) -> int:
    """Return the slot of a distribution: 0 to `SLOTS` - 1, in the order of the chain. An unknown size counts as large."""
    number = int.from_bytes(hashlib.sha256(artifact.name.encode()).digest()[:8])
    if not artifact.size:
        # Some indexes publish no sizes, and those that serve the largest wheels are among them.
        return number % TIERS[0][1]
    first = 0
    for above, slots in TIERS[:-1]:
        if artifact.size > above:
            return first + number % slots
        first += slots
    return first + number % TIERS[-1][1]


def oversized(artifacts: Iterable[Artifact], limit: int = LAYER_LIMIT_BYTES) -> list[str]:
    """Return a warning for each slot whose layer some registries will refuse, with what makes it large.

    Args:
        artifacts: the plan's.
        limit: bytes of a compressed layer. A wheel is compressed about as well as a layer, so its slot's files count.
    """
    warnings = []
    for number, slot in enumerate(assign(artifacts)):
        total = sum(artifact.size for artifact in slot)
        if total > limit:
            largest = sorted(slot, key=lambda artifact: (-artifact.size, artifact.filename))[:3]
            names = ", ".join(f"{item.name} {item.version} ({item.size / 1e9:.1f} GB)" for item in largest)
            warnings.append(
                f"slot {number:02d} becomes one layer of about {total / 1e9:.1f} GB, and some registries "
                f"take {limit / 1e9:.0f} GB at most: {names}"
            )
    return warnings


def check_layer_count(base_layers: int, source_stages: int = 0) -> None:
    """Check that an engine can run what is built on a base image.

    Args:
        base_layers: how many layers the base image has.
        source_stages: how many source-built stages follow.

    Raises:
        BuildError: it has too many.
    """
    layers = LAYERS + STAGE_LAYERS * source_stages
    if base_layers + layers > ENGINE_LAYERS:
        raise BuildError(
            f"the base image has {base_layers} layers; with the {layers} of the venvs that is more than {ENGINE_LAYERS}",
            cause="engines do not run images of more layers",
            next_step="flatten the base image, or take one with fewer layers",
        )


def assign(artifacts: Iterable[Artifact]) -> tuple[tuple[Artifact, ...], ...]:
    """Return the artifacts of every slot, each slot sorted by filename.

    Returns:
        `SLOTS` tuples; some may be empty.
    """
    slots: list[list[Artifact]] = [[] for _ in range(SLOTS)]
    for artifact in sorted(artifacts):
        slots[slot_of(artifact)].append(artifact)
    return tuple(tuple(slot) for slot in slots)
