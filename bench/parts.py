"""A registry and mksquashfs from Debian's packages, unpacked and not installed."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from greenroom import debian
from lab import Lab, Unavailable

PACKAGES = ("docker-registry", "squashfs-tools", "liblzo2-2", "liblz4-1", "liblzma5", "libzstd1", "zlib1g")
"""The programs, and the libraries of the second that a small system lacks."""
READY_TIMEOUT = 30.0
MANIFEST_TYPES = (
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
)


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


def library_environment(root: Path) -> dict[str, str]:
    """Return an environment in which the unpacked programs find their libraries."""
    directories = [str(path) for base in ("lib", "usr/lib") for path in sorted((root / base).glob("*-linux-gnu"))]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(directories)}


@dataclass(frozen=True, kw_only=True)
class Registry:
    """A registry on the loopback interface.

    Attributes:
        address: host:port, the prefix of image references.
        storage: where its blobs are.
    """

    address: str
    storage: Path

    def reference(self, repository: str, tag: str) -> str:
        """Return an image reference."""
        return f"{self.address}/{repository}:{tag}"

    def stored_bytes(self) -> int:
        """Return the bytes of every blob that it stores."""
        return sum(path.stat().st_size for path in self.storage.rglob("blobs/sha256/*/*/data"))

    def layers(self, repository: str, tag: str) -> dict[str, int]:
        """Return an image's layers as they travel: digest → compressed bytes."""
        request = urllib.request.Request(
            f"http://{self.address}/v2/{repository}/manifests/{tag}", headers={"Accept": ", ".join(MANIFEST_TYPES)}
        )
        # Never through a proxy: it is on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as answer:
            manifest: dict[str, Any] = json.load(answer)
        return {layer["digest"]: layer["size"] for layer in manifest["layers"]}


def start_registry(lab: Lab, name: str) -> Registry:
    """Start an empty registry on a free port; it ends with the laboratory.

    Raises:
        Unavailable: it cannot be had or does not answer.
    """
    root = unpacked(lab)
    directory = lab.directory / f"registry-{name}"
    storage = directory / "storage"
    shutil.rmtree(directory, ignore_errors=True)
    storage.mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    configuration = {
        "version": 0.1,
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(storage)}, "delete": {"enabled": True}},
        "http": {"addr": address},
    }
    # JSON is YAML.
    (directory / "config.yml").write_text(json.dumps(configuration), encoding="utf-8")
    with (directory / "registry.log").open("wb") as log:
        child = subprocess.Popen(
            [root / "usr/bin/docker-registry", "serve", directory / "config.yml"],
            env=library_environment(root),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    lab.adopt(child)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + READY_TIMEOUT
    while time.monotonic() < deadline and child.poll() is None:
        try:
            with opener.open(f"http://{address}/v2/", timeout=5):
                return Registry(address=address, storage=storage)
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    last = (directory / "registry.log").read_text(errors="replace").strip().splitlines()[-1:]
    raise Unavailable(f"docker-registry does not answer: {' '.join(last)}")
