"""How large the venvs of an image are, and where its bytes come from. Pure.

- A file is counted once, however many hardlinks it has. It is a venv's *own* when no other venv has it, else *shared*.
- Bytecode is counted apart: it is an option of the build, and `own`, `shared` and a distribution's `size` are without it.
- A distribution owns what its RECORD names, and the bytecode of that. What none owns is the venv's itself.
- Only content counts: directories and links take entries, not bytes.
"""

from __future__ import annotations

import csv
import posixpath
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from functools import cached_property, lru_cache
from importlib.util import source_from_cache
from io import StringIO

from packaging.utils import canonicalize_name

from greenroom.image_inspector import SETS
from greenroom.image_tree import FileSystem, Image, Node

Distribution = tuple[str, str]
"""Normalised name and version."""


@dataclass(frozen=True, kw_only=True, order=True)
class Venv:
    """A real directory that is a venv.

    Attributes:
        directory: its path.
        actors: the names in the venv directory that lead to it, sorted; empty for a set without an actor.
    """

    directory: str
    actors: tuple[str, ...]

    @property
    def name(self) -> str:
        """The environment set's or the actor's name."""
        return posixpath.basename(self.directory)


@dataclass(frozen=True, kw_only=True)
class VenvSize:
    """A venv's size, in bytes.

    Attributes:
        venv: the venv.
        own: of files that no other venv has.
        shared: of files that other venvs have too.
        bytecode: of compiled files, own or shared.
        entries: paths below its directory.
        distributions: how many are installed.
    """

    venv: Venv
    own: int
    shared: int
    bytecode: int
    entries: int
    distributions: int

    @property
    def total(self) -> int:
        """Every byte."""
        return self.own + self.shared + self.bytecode


@dataclass(frozen=True, kw_only=True)
class DistributionSize:
    """A distribution's size in the whole image, in bytes.

    Attributes:
        name, version: the distribution's; both "" for what belongs to no distribution.
        size: of its files.
        bytecode: of their compiled files.
        files: how many there are, hardlinks counted once.
        venvs: names of the venvs that have it.
    """

    name: str
    version: str
    size: int
    bytecode: int
    files: int
    venvs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class LayerSize:
    """A layer's size, in bytes of content.

    Attributes:
        index: its place, lowest first.
        digest: its diff id.
        size: what it stores.
        venv_size: what of that is below the venv directory.
        hidden: what of it no container sees, since a later layer removes or replaces it.
        entries: of its archive.
        made_by: the instruction.
        largest: the largest distributions in it, with their bytes in it.
    """

    index: int
    digest: str
    size: int
    venv_size: int
    hidden: int
    entries: int
    made_by: str
    largest: tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """All sizes of an image; the sequences have the largest first.

    Attributes:
        image: its reference.
        identifier: the engine's.
        venv_dir: where its venvs live.
        size: bytes of content that its layers store.
        entries: paths of its file system.
        venv_size: bytes of files below the venv directory, hardlinks counted once.
        venv_stored: bytes of content that the layers store below it, hidden files included.
        venv_unique: bytes of distinct content below it.
        venv_entries: paths below it.
        bytecode: bytes of compiled files in venvs.
        venvs, distributions, layers: the parts.
    """

    image: str
    identifier: str
    venv_dir: str
    size: int
    entries: int
    venv_size: int
    venv_stored: int
    venv_unique: int
    venv_entries: int
    bytecode: int
    venvs: tuple[VenvSize, ...]
    distributions: tuple[DistributionSize, ...]
    layers: tuple[LayerSize, ...]


def is_bytecode(path: str) -> bool:
    """Say whether a path is a compiled module in its place."""
    return path.endswith(".pyc") and path.rpartition("/")[0].endswith("/__pycache__")


def venv_bytes(tree: FileSystem, venv_dir: str) -> int:
    """Return the bytes of the files below a directory; a file with hardlinks counts once."""
    return sum({node.inode: node.size for _, node in tree.below(venv_dir)}.values())


def unique_venv_bytes(tree: FileSystem, venv_dir: str) -> int:
    """Return the bytes of distinct content below a directory: what it would take if no two files were equal."""
    return sum({node.sha256: node.size for _, node in tree.below(venv_dir)}.values())


def stored_venv_bytes(image: Image) -> int:
    """Return the bytes of content that an image's layers store below its venv directory, hidden files included."""
    return sum(layer.stored_below(image.venv_dir) for layer in image.layers)


def venv_bytes_by_layer(image: Image) -> tuple[int, ...]:
    """Return, for each layer, the bytes of content that it stores below the venv directory."""
    return tuple(layer.stored_below(image.venv_dir) for layer in image.layers)


def duplication(image: Image) -> float:
    """Return how many bytes the layers store below the venv directory for one byte of distinct content; 1 is best."""
    unique = unique_venv_bytes(image.tree, image.venv_dir)
    return stored_venv_bytes(image) / unique if unique else 1.0


def venv_entries(tree: FileSystem, venv_dir: str) -> int:
    """Return how many paths there are below a directory."""
    return sum(1 for _ in tree.below(venv_dir))


def find_venvs(tree: FileSystem, venv_dir: str) -> tuple[Venv, ...]:
    """Return the venvs of an image: the actors' real directories, and the sets that no actor leads to."""
    actors: dict[str, list[str]] = {}
    for name in tree.names_in(f"{venv_dir}/{SETS}"):
        if tree.nodes[directory := f"{venv_dir}/{SETS}/{name}"].kind == "directory":
            actors[directory] = []
    for name in tree.names_in(venv_dir):
        real = tree.resolve(f"{venv_dir}/{name}")
        if name != SETS and real and tree.nodes[real].kind == "directory":
            actors.setdefault(real, []).append(name)
    return tuple(Venv(directory=directory, actors=tuple(sorted(names))) for directory, names in sorted(actors.items()))


class Installed:
    """The distributions of one venv, from their RECORD and METADATA files.

    Args:
        image: the image.
        venv: the venv.

    Attributes:
        distributions: what is installed, sorted.
    """

    def __init__(self, image: Image, venv: Venv) -> None:
        self._owners: dict[str, Distribution] = {}
        found: set[Distribution] = set()
        for path, node in image.tree.below(venv.directory):
            if not path.endswith((".dist-info/METADATA", ".dist-info/RECORD")):
                continue
            directory, name = posixpath.split(path)
            if name == "METADATA":
                found.add(_distribution(image, directory, node))
                continue
            owner = _distribution(image, directory, image.tree.nodes.get(f"{directory}/METADATA"))
            base = posixpath.dirname(directory)
            for recorded in _recorded(image.facts.texts.get(node.sha256, b"")):
                place = f"{base}/{recorded}"
                # Two distributions may claim a path; the first by name has it, so that no byte counts twice.
                self._owners.setdefault(posixpath.normpath(place) if recorded.startswith("../") else place, owner)
        self.distributions = tuple(sorted(found))

    def owner(self, path: str) -> Distribution | None:
        """Return the distribution that a path belongs to, or None."""
        if (owner := self._owners.get(path)) is None and is_bytecode(path):
            try:
                return self._owners.get(source_from_cache(path))
            except ValueError:
                return None
        return owner


def _distribution(image: Image, dist_info: str, metadata: Node | None) -> Distribution:
    """Return what a .dist-info directory says that it is; its name says it when METADATA does not."""
    name, _, version = posixpath.basename(dist_info).removesuffix(".dist-info").partition("-")
    headers = BytesHeaderParser().parsebytes(image.facts.texts.get(metadata.sha256, b"") if metadata else b"")
    return canonicalize_name(headers.get("Name") or name), str(headers.get("Version") or version)


@lru_cache(maxsize=4096)
def _recorded(record: bytes) -> tuple[str, ...]:
    """Return the paths that a RECORD names, normalised; many venvs have the same one."""
    rows = csv.reader(StringIO(record.decode(errors="surrogateescape"), newline=""))
    return tuple(posixpath.normpath(row[0]) for row in rows if row)


class _Census:
    """Every file that is in a venv, once: which venvs have it, and who owns it."""

    def __init__(self, image: Image, venvs: Iterable[Venv]) -> None:
        self.nodes: dict[int, Node] = {}
        self.compiled: set[int] = set()
        self.venvs_of: dict[int, set[str]] = defaultdict(set)
        self.owner_of: dict[int, Distribution] = {}
        self.entries: Counter[str] = Counter()
        self.installed: dict[str, Installed] = {}
        for venv in venvs:
            installed = self.installed[venv.directory] = Installed(image, venv)
            for path, node in image.tree.below(venv.directory):
                self.entries[venv.directory] += 1
                if node.kind != "file":
                    continue
                self.nodes[node.inode] = node
                self.venvs_of[node.inode].add(venv.directory)
                if is_bytecode(path):
                    self.compiled.add(node.inode)
                if node.inode not in self.owner_of and (owner := installed.owner(path)):
                    self.owner_of[node.inode] = owner

    def venv_size(self, venv: Venv, files: Iterable[int]) -> VenvSize:
        """Return a venv's size from the files that it has."""
        sums = {"own": 0, "shared": 0, "bytecode": 0}
        for inode in files:
            alone = len(self.venvs_of[inode]) == 1
            column = "bytecode" if inode in self.compiled else "own" if alone else "shared"
            sums[column] += self.nodes[inode].size
        return VenvSize(
            venv=venv,
            **sums,
            entries=self.entries[venv.directory],
            distributions=len(self.installed[venv.directory].distributions),
        )

    def venv_sizes(self, venvs: Iterable[Venv]) -> list[VenvSize]:
        """Return the venvs' sizes, largest first."""
        files: dict[str, list[int]] = defaultdict(list)
        for inode, directories in self.venvs_of.items():
            for directory in directories:
                files[directory].append(inode)
        found = [self.venv_size(venv, files[venv.directory]) for venv in venvs]
        return sorted(found, key=lambda item: (-item.total, item.venv))

    def distribution_sizes(self, names: Mapping[str, str]) -> list[DistributionSize]:
        """Return the distributions' sizes, largest first; `names` are the venvs' by directory."""
        files: dict[Distribution, list[int]] = defaultdict(list)
        for inode in self.nodes:
            files[self.owner_of.get(inode, ("", ""))].append(inode)
        venvs: dict[Distribution, set[str]] = defaultdict(set)
        for directory, installed in self.installed.items():
            for distribution in installed.distributions:
                files.setdefault(distribution, [])
                venvs[distribution].add(names[directory])
        found = []
        for (name, version), inodes in files.items():
            has = venvs[name, version] or {names[place] for inode in inodes for place in self.venvs_of[inode]}
            compiled = sum(self.nodes[inode].size for inode in inodes if inode in self.compiled)
            found.append(
                DistributionSize(
                    name=name,
                    version=version,
                    size=sum(self.nodes[inode].size for inode in inodes) - compiled,
                    bytecode=compiled,
                    files=len(inodes),
                    venvs=tuple(sorted(has)),
                )
            )
        return sorted(found, key=lambda item: (-item.size - item.bytecode, item.name, item.version))

    @cached_property
    def by_layer(self) -> dict[int, Counter[str]]:
        """Layer → distribution → bytes of it in that layer."""
        found: dict[int, Counter[str]] = defaultdict(Counter)
        for inode, owner in self.owner_of.items():
            found[self.nodes[inode].layer][" ".join(owner)] += self.nodes[inode].size
        return found


def layer_sizes(image: Image, largest: Mapping[int, Counter[str]] | None = None) -> list[LayerSize]:
    """Return the layers' sizes, largest first.

    Args:
        image: the image.
        largest: layer → distribution → its bytes there, for the layers' `largest`.
    """
    seen: Counter[int] = Counter()
    for node in {node.inode: node for node in image.tree.nodes.values()}.values():
        seen[node.layer] += node.size
    found = []
    for index, (layer, made_by) in enumerate(zip(image.layers, image.made_by, strict=True)):
        inside = (largest or {}).get(index) or Counter[str]()
        found.append(
            LayerSize(
                index=index,
                digest=layer.digest,
                size=layer.size,
                venv_size=layer.stored_below(image.venv_dir),
                hidden=layer.size - seen[index],
                entries=len(layer.entries),
                made_by=" ".join(made_by.split()),
                largest=tuple(sorted(inside.items(), key=lambda item: (-item[1], item[0]))[:3]),
            )
        )
    return sorted(found, key=lambda item: (-item.size, item.index))


def measure(image: Image) -> Sizes:
    """Return all sizes of an image."""
    venvs = find_venvs(image.tree, image.venv_dir)
    census = _Census(image, venvs)
    return Sizes(
        image=image.reference,
        identifier=image.identifier,
        venv_dir=image.venv_dir,
        size=sum(layer.size for layer in image.layers),
        entries=venv_entries(image.tree, "/"),
        venv_size=venv_bytes(image.tree, image.venv_dir),
        venv_stored=stored_venv_bytes(image),
        venv_unique=unique_venv_bytes(image.tree, image.venv_dir),
        venv_entries=venv_entries(image.tree, image.venv_dir),
        bytecode=sum(census.nodes[inode].size for inode in census.compiled),
        venvs=tuple(census.venv_sizes(venvs)),
        distributions=tuple(census.distribution_sizes({venv.directory: venv.name for venv in venvs})),
        layers=tuple(layer_sizes(image, census.by_layer)),
    )
