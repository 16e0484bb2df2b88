"""A registry and mksquashfs from Debian's packages, unpacked and not installed."""

from __future__ import annotations

from pathlib import Path

from greenroom import debian
from lab import Lab, Unavailable

PACKAGES = ("docker-registry", "squashfs-tools", "liblzo2-2", "liblz4-1", "liblzma5", "libzstd1", "zlib1g")
"""The programs, and the libraries of the second that a small system lacks."""


def unpacked(lab: Lab) -> Path:
    """Return the root of the unpacked packages, of the host's own suite so that its C library serves them.

    Raises:
        Unavailable: they cannot be had here.
    """
    suite = debian.host_codename()
    if suite is None or debian.usable():
        raise Unavailable(f"Debian's packages cannot be used: {debian.usable()}")
    try:
        return debian.ensure_unpacked(lab.directory / "parts", "bench", {suite: PACKAGES})
    except debian.PackagesError as error:
        raise Unavailable(f"{error.what}: {error.cause}") from error
