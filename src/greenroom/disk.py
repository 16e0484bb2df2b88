"""Whether the engine's disk has room for a build, asked before it starts: hours later the answer comes by itself.

- Only a disk that this machine sees is looked at: that of an engine that answers on a socket of this machine, if its
  data directory is here. Of any other engine nothing is said.
- A build that finds much of its work in the engine's cache needs less. That is not foreseen, but for an image that is
  there already: one byte changed in an early layer makes all later layers again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from greenroom.console import say
from greenroom.engine import Engine
from greenroom.errors import BuildError
from greenroom.estimate import estimate, readable
from greenroom.plan import Plan

SKIP_VARIABLE = "GREENROOM_SKIP_DISK_CHECK"
PLAN_LABEL = "org.greenroom.plan.digest"

_CONTAINERD_STORE = "io.containerd.snapshotter.v1"
_SYSTEM_CONTAINERD = ("/run/containerd/containerd.sock", Path("/var/lib/containerd"))
"""The socket of a containerd that the system started, and where that one keeps its data."""


@dataclass(frozen=True, kw_only=True)
class Storage:
    """Where an engine keeps its data.

    Attributes:
        directory: on this machine.
        packed: whether it keeps layers compressed as well as unpacked.
    """

    directory: Path
    packed: bool


def check_disk(engine: Engine, plan: Plan, *, present: str, bytecode: bool, twice: bool) -> None:
    """Check that there is room for a build.

    Args:
        engine: where it is built.
        plan: what is built.
        present: an image that saves the check when it is of the same plan; "" for none, as when all is built again.
        bytecode: whether sources are compiled.
        twice: whether it is built a second time, without any cache.

    Raises:
        BuildError: there is not.
    """
    if os.environ.get(SKIP_VARIABLE, "") not in {"", "0"} or (present and _plan_of(engine, present) == plan.digest):
        return
    storage = engine_storage(engine)
    if storage is None:
        return
    estimated = estimate(plan)
    needed = estimated.disk_bytes(bytecode=bytecode, packed=storage.packed, twice=twice)
    free = check_room(storage.directory, needed)
    say(f"disk: a build from nothing needs about {readable(needed)}; {storage.directory} has {readable(free)} free")


def check_room(directory: Path, needed: int) -> int:
    """Check that a directory's disk has room.

    Args:
        directory: any directory on the disk.
        needed: bytes.

    Returns:
        The bytes that are free.

    Raises:
        BuildError: they are fewer.
    """
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise BuildError(
            f"the build needs about {readable(needed)} of disk, and {directory}, where the engine keeps its data, has"
            f" {readable(free)} free",
            cause="other images and the build cache fill that disk",
            next_step="docker system df, then docker system prune; skip extras;"
            f" or {SKIP_VARIABLE}=1 when most of it is in the build cache",
        )
    return free


def engine_storage(engine: Engine) -> Storage | None:
    """Return where an engine keeps its data, or None when this machine does not see it."""
    # The same path on this machine would be another disk.
    if not engine.host.startswith("unix://"):
        return None
    with contextlib.closing(engine.client()) as client:
        return _storage(client.info())


def _storage(info: dict[str, Any]) -> Storage | None:
    directory = Path(info.get("DockerRootDir") or "/nonexistent")
    packed = [_CONTAINERD_STORE] in [row[1:] for row in info.get("DriverStatus") or []]
    socket, data = _SYSTEM_CONTAINERD
    if packed and (info.get("Containerd") or {}).get("Address") == socket and data.is_dir():
        directory = data
    try:
        # An engine in a virtual machine answers on a socket here and keeps its data there.
        return Storage(directory=directory, packed=packed) if directory.is_dir() else None
    except OSError:
        return None


def _plan_of(engine: Engine, image: str) -> str:
    """Return the digest of the plan that an image was made from; "" when there is none."""
    from docker.errors import ImageNotFound

    with contextlib.closing(engine.client()) as client:
        try:
            return str(client.images.get(image).labels.get(PLAN_LABEL, ""))
        except ImageNotFound:
            return ""
