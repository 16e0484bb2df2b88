"""Files that are never half-written: write aside, flush, then rename."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from greenroom.process import is_dry_run


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


def cache_dir() -> Path:
    """Return greenroom's cache directory: `$GREENROOM_CACHE_DIR`, else `greenroom` below `$XDG_CACHE_HOME` or `~/.cache`."""
    if own := os.environ.get("GREENROOM_CACHE_DIR"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "greenroom"
