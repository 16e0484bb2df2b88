"""Reading an image's layers from outside, out of `docker save`: entries, bytes, and bytes of unique files."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from greenroom.engine import Engine
from lab import BASE, SAVE_TIMEOUT

VENVS = "opt/ray_venvs"


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer: its diff id, and the bytes of its uncompressed tar."""

    diff_id: str
    tar_bytes: int


@dataclass(kw_only=True)
class VenvFacts:
    """What is below the venv directory, bytecode apart.

    Attributes:
        entries: paths in the final tree, directories and links included.
        file_bytes: bytes of files as the layers carry them; a hardlink carries none.
        unique_bytes: bytes of files of different content.
        bytecode_file_bytes: as `file_bytes`, of `.pyc` files.
        bytecode_unique_bytes: likewise.
        symlinks: how many of the entries are symbolic links.
    """

    entries: int = 0
    symlinks: int = 0
    file_bytes: int = 0
    unique_bytes: int = 0
    bytecode_file_bytes: int = 0
    bytecode_unique_bytes: int = 0
    kinds: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the numbers."""
        return vars(self)


def diff_ids(engine: Engine, image: str) -> list[str]:
    """Return the diff ids of an image's layers, the base image's first."""
    told = engine.cli("image", "inspect", "--format", "{{json .RootFS.Layers}}", image, timeout=60).stdout
    layers: list[str] = json.loads(told)
    return layers


@contextmanager
def _saved(engine: Engine, image: str, scratch: Path) -> Iterator[tuple[tarfile.TarFile, list[tuple[str, str]]]]:
    """Yield a saved image and (diff id, member) of each layer."""
    archive = scratch / "saved.tar"
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        engine.cli("save", "--output", archive, image, timeout=SAVE_TIMEOUT)
        with tarfile.open(archive) as tar:
            (manifest,) = json.load(_member(tar, "manifest.json"))
            ids: list[str] = json.load(_member(tar, manifest["Config"]))["rootfs"]["diff_ids"]
            yield tar, list(zip(ids, manifest["Layers"], strict=True))
    finally:
        archive.unlink(missing_ok=True)


def _member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    info = tar.getmember(name)
    while info.issym():
        # An older engine saves a layer that two images share as a link to the other's file.
        info = tar.getmember(str(Path(info.name).parent / info.linkname))
    file = tar.extractfile(info)
    assert file is not None
    return file


def venv_layers(engine: Engine, image: str, scratch: Path) -> list[Layer]:
    """Return the layers that an image has on top of the base image."""
    base = len(diff_ids(engine, BASE))
    layers = []
    with _saved(engine, image, scratch) as (tar, members):
        for diff_id, name in members[base:]:
            file = _member(tar, name)
            layers.append(Layer(diff_id=diff_id, tar_bytes=file.seek(0, 2)))
    return layers


def venv_facts(engine: Engine, image: str, scratch: Path) -> VenvFacts:
    """Read every layer of an image and count what is below the venv directory."""
    facts = VenvFacts()
    present: dict[str, bytes] = {}
    sizes: dict[bytes, tuple[int, bool]] = {}
    with _saved(engine, image, scratch) as (tar, members):
        for _, name in members:
            with tarfile.open(fileobj=_member(tar, name), mode="r|") as layer:
                for entry in layer:
                    path = entry.name.removeprefix("./").rstrip("/")
                    if path == VENVS or path.startswith(f"{VENVS}/"):
                        present[path] = entry.type
                        if entry.isreg():
                            _count(facts, sizes, layer, entry)
    facts.entries = len(present)
    facts.symlinks = sum(kind == tarfile.SYMTYPE for kind in present.values())
    for kind in present.values():
        facts.kinds[kind.decode()] = facts.kinds.get(kind.decode(), 0) + 1
    for size, is_bytecode in sizes.values():
        if is_bytecode:
            facts.bytecode_unique_bytes += size
        else:
            facts.unique_bytes += size
    return facts


def _count(
    facts: VenvFacts, sizes: dict[bytes, tuple[int, bool]], layer: tarfile.TarFile, entry: tarfile.TarInfo
) -> None:
    file = layer.extractfile(entry)
    assert file is not None
    is_bytecode = entry.name.endswith(".pyc")
    digest = hashlib.sha256()
    while chunk := file.read(1 << 20):
        digest.update(chunk)
    sizes[digest.digest()] = (entry.size, is_bytecode)
    if is_bytecode:
        facts.bytecode_file_bytes += entry.size
    else:
        facts.file_bytes += entry.size
