"""Trees of installed files: linking them from one venv into others, and making their times the same every build.

Runs in the image's own interpreter with the standard library alone.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import stat
import sys
from pathlib import Path

EPOCH = 315532800
"""1980-01-01, the earliest time that a zip file can hold: the time of everything that the build writes, wheels that it
builds included, so that equal content is equal bytes."""
EPOCH_IN_ZIP = (1980, 1, 1, 0, 0, 0)
"""The same, as zip files write it."""

SETS = ".sets"
"""Below the venv directory: one real directory per environment set. Actors' paths are links to these."""
SCRATCH = ".scratch"
"""Below the venv directory while a step works: the step's venv and uv's cache. Gone when the step ends."""


def fail(message: str) -> None:
    """End the step, and with it the build, with one line."""
    sys.exit(f"greenroom: {' '.join(message.split())}")


def link_file(source: str, target: str, owner: str) -> None:
    """Hardlink a file into a set, or recreate it when it is a symbolic link.

    Args:
        source: the installed file.
        target: its path in the set; its directory is made when missing.
        owner: the distribution that installs it, for the message.

    A file that is already there is replaced: two distributions own the path, and the one installed last wins, as with
    any installer. One of other content is named; one of the same content is replaced as well, so that what a layer
    holds depends on its own distributions and not on those of the layers before. Images hold hundreds of thousands of
    links, so the usual case is one system call.
    """
    try:
        _link(source, target)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _link(source, target)
    except FileExistsError:
        links = os.path.islink(target) or os.path.islink(source)
        if links or not filecmp.cmp(source, target, shallow=False):
            print(f"greenroom: {owner} replaces {target}, which another distribution installed", flush=True)
        os.unlink(target)
        _link(source, target)


def _link(source: str, target: str) -> None:
    if os.path.islink(source):
        # A new file, with a time of its own; a hardlink has its source's.
        os.symlink(os.readlink(source), target)
        settle(target)
    else:
        os.link(source, target)


def settle(path: str) -> None:
    """Give a file or directory its fixed time and make it readable for everyone."""
    mode = os.lstat(path).st_mode
    if not stat.S_ISLNK(mode):
        wanted = (stat.S_IMODE(mode) | 0o444) & ~0o022
        if stat.S_ISDIR(mode) or wanted & 0o100:
            wanted |= 0o111
        if wanted != stat.S_IMODE(mode):
            os.chmod(path, wanted)
    os.utime(path, (EPOCH, EPOCH), follow_symlinks=False)


def settle_parents(directory: Path) -> None:
    """Give a directory and its parents, up to but without the root, their fixed time."""
    while directory != directory.parent:
        os.utime(directory, (EPOCH, EPOCH))
        directory = directory.parent


def remove_scratch(venv_dir: Path) -> None:
    """Remove the step's scratch directory."""
    shutil.rmtree(venv_dir / SCRATCH, ignore_errors=True)
    if (venv_dir / SCRATCH).exists():
        fail(f"{venv_dir / SCRATCH} cannot be removed")
