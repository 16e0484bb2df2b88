"""A registry on the loopback interface, from Debian's docker-registry package; benches and tests push to it."""

from __future__ import annotations

import json
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
from greenroom.process import end_process_group

READY_TIMEOUT = 30.0
MANIFEST_TYPES = (
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
)


class RegistryError(Exception):
    """The registry does not start."""


@dataclass(frozen=True, kw_only=True)
class Registry:
    """A registry on the loopback interface.

    Attributes:
        address: host:port, the prefix of image references.
        storage: where its blobs are.
        child: its process, which leads its own group.
    """

    address: str
    storage: Path
    child: subprocess.Popen[bytes]

    def reference(self, repository: str, tag: str) -> str:
        """Return an image reference."""
        return f"{self.address}/{repository}:{tag}"

    def stored_bytes(self) -> int:
        """Return the bytes of every blob that it stores."""
        return sum(path.stat().st_size for path in self.storage.rglob("blobs/sha256/*/*/data"))

    def layers(self, repository: str, tag: str) -> dict[str, int]:
        """Return an image's layers as they travel: digest → compressed bytes."""
        return {layer["digest"]: layer["size"] for layer in self.manifest(repository, tag)["layers"]}

    def manifest(self, repository: str, tag: str) -> dict[str, Any]:
        """Return an image's manifest.

        Raises:
            urllib.error.HTTPError: there is no such image (404).
        """
        request = urllib.request.Request(
            f"http://{self.address}/v2/{repository}/manifests/{tag}", headers={"Accept": ", ".join(MANIFEST_TYPES)}
        )
        # Never through a proxy: it is on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as answer:
            manifest: dict[str, Any] = json.load(answer)
        return manifest


def start_registry(root: Path, directory: Path) -> Registry:
    """Start an empty registry on a free port of the loopback interface.

    Args:
        root: of the unpacked packages, docker-registry among them.
        directory: its storage, configuration and log; emptied first.

    Returns:
        The registry; ending its process is the caller's.

    Raises:
        RegistryError: it does not answer.
    """
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
            env=debian.library_environment(root),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + READY_TIMEOUT
    while time.monotonic() < deadline and child.poll() is None:
        try:
            with opener.open(f"http://{address}/v2/", timeout=5):
                return Registry(address=address, storage=storage, child=child)
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    last = (directory / "registry.log").read_text(errors="replace").strip().splitlines()[-1:]
    end_process_group(child)
    raise RegistryError(f"docker-registry does not answer: {' '.join(last)}")
