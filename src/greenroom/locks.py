"""Locks between commands that share the cache directory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from greenroom.console import say
from greenroom.process import is_dry_run

PATIENCE = 1200.0
"""Seconds to wait for another command: longer than anything that is done under a lock may take."""


@contextlib.contextmanager
def held(path: Path, error: Callable[..., Exception]) -> Iterator[None]:
    """Hold a lock while the block runs; it is released even when the process is killed. A dry run needs none.

    Args:
        path: the lock's file; its directory is made when missing.
        error: what to raise when another command does not release it; called like `GreenroomError`.

    Raises:
        Exception: `error`'s.
    """
    if is_dry_run():
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0.1)
    except Timeout:
        say(f"waiting for another command that holds {path}")
        try:
            lock.acquire(timeout=PATIENCE)
        except Timeout as late:
            raise error(
                f"{path} is still held after {PATIENCE:.0f} s",
                cause="another greenroom hangs",
                next_step=f"fuser {path}, end that command and try again",
            ) from late
    try:
        yield
    finally:
        lock.release()
