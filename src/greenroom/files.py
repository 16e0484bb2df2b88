"""Files that are never half-written: write aside, flush, then rename. Directories that outlive no command for long."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from greenroom.process import end_abandoned, is_dry_run


def write_aside(path: Path, content: str | bytes, *, mode: int = 0o644) -> None:
    """Write a file so that a reader sees the old content or the new, never a part.

    Args:
        path: the file; its directory is made when missing.
        content: the whole new content; text is encoded as UTF-8.
        mode: its permission bits.

    Under `dry_run()` the file is named and not written.
    """
    if is_dry_run():
        print(f"write {path}")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(aside).chmod(mode)
        Path(aside).replace(path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """Yield a new directory in the temporary one, and remove it afterwards.

    What a killed command leaves, its directory and a buildx that goes on, the next command ends and removes.
    """
    if not is_dry_run():
        _remove_abandoned()
    handle, lock = _locked_file()
    directory = lock.with_suffix("")
    try:
        directory.mkdir(mode=0o700)
        yield directory
    finally:
        if directory.exists():
            shutil.rmtree(directory)
        lock.unlink(missing_ok=True)
        os.close(handle)


def _locked_file() -> tuple[int, Path]:
    """Make and lock a file: the kernel unlocks it when this process ends, however it ends, as no child inherits it."""
    while True:
        handle, name = tempfile.mkstemp(prefix="greenroom-", suffix=".lock")
        fcntl.flock(handle, fcntl.LOCK_EX)
        # Another command may have taken it for an abandoned one before it was locked.
        if os.fstat(handle).st_nlink:
            return handle, Path(name)
        os.close(handle)


def _remove_abandoned() -> None:
    """Remove the scratch directories whose command has ended, and end what it left running."""
    for lock in Path(tempfile.gettempdir()).glob("greenroom-*.lock"):
        # Another user's is that user's to remove; another command may be removing it, too.
        with contextlib.suppress(OSError), lock.open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                continue
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            directory = lock.with_suffix("")
            end_abandoned(["buildx", f"{directory}/"])
            if directory.exists():
                shutil.rmtree(directory)
            lock.unlink()


def cache_dir() -> Path:
    """Return greenroom's cache directory: `$GREENROOM_CACHE_DIR`, else `greenroom` below `$XDG_CACHE_HOME` or `~/.cache`."""
    if own := os.environ.get("GREENROOM_CACHE_DIR"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "greenroom"
