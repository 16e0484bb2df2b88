"""Slots: which image layer a distribution's files go into.

- A slot is a group of distributions that forms one layer, whichever environment sets need them.
- The assignment depends on a distribution's name and size alone, never on the others, so one change
  moves nothing else: bumping one small package changes one layer.
- Large wheels come first in the chain, each alone or with few: they change least often, and a change
  re-runs only what comes after it. The many small ones share the last slots.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from greenroom.lock import Artifact

LARGE_SLOTS = 12
SMALL_SLOTS = 6
"""Together 18 layers. An image may have 127 layers and base images bring a few; in the measured workload
(20 venvs, 437 MB of wheels) 12 + 6 slots kept a one-package bump to one 10 MB layer of 1.4 GB."""

SLOTS = LARGE_SLOTS + SMALL_SLOTS
FETCH_GROUPS = (range(4), range(4, 8), range(8, 12), range(12, SLOTS))
"""Slots whose wheels one step fetches. A bump copies its group's wheels again; a step costs half a second of a core."""
LARGE_BYTES = 3_000_000
"""A file above this counts as large."""


def slot_of(artifact: Artifact) -> int:
    """Return the slot of a distribution: 0 to `SLOTS` - 1, in the order of the chain."""
    number = int.from_bytes(hashlib.sha256(artifact.name.encode()).digest()[:8])
    if artifact.size > LARGE_BYTES:
        return number % LARGE_SLOTS
    return LARGE_SLOTS + number % SMALL_SLOTS


def assign(artifacts: Iterable[Artifact]) -> tuple[tuple[Artifact, ...], ...]:
    """Return the artifacts of every slot, each slot sorted by filename.

    Returns:
        `SLOTS` tuples; some may be empty.
    """
    slots: list[list[Artifact]] = [[] for _ in range(SLOTS)]
    for artifact in sorted(artifacts):
        slots[slot_of(artifact)].append(artifact)
    return tuple(tuple(slot) for slot in slots)
