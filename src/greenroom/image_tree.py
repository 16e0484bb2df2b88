"""What an image holds: its layers, and the file system that they make together. Pure values.

- A layer is a list of changes to the layers below it, as its tar archive has them: entries, and whiteouts that hide
  what is below. `greenroom.image_layers` reads them.
- A regular file's bytes lie in the one layer that wrote it last. Its hardlinks are further paths of the same `Node`:
  in one layer they cost nothing.
"""

from __future__ import annotations

import posixpath
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Literal

from greenroom.file_facts import FileFacts

Kind = Literal["file", "directory", "symlink", "hardlink", "other"]

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
_WHITEOUT_METADATA = ".wh..wh."
_MOST_LINKS = 40
"""Symbolic links that are followed for one path; the kernel's own limit."""


@dataclass(frozen=True, slots=True)
class LayerEntry:
    """One entry of a layer's archive, whiteouts included.

    Attributes:
        path: absolute and normalised.
        kind: what it is; "other" is a device or a pipe.
        size: bytes of content; 0 for all but regular files.
        sha256: of the content; "" for all but regular files.
        target: of a symbolic link as it is written; of a hardlink an absolute path.
        attributes: its time, mode, owner and group; they make no difference between two entries.
    """

    path: str
    kind: Kind
    size: int = 0
    sha256: str = ""
    target: str = ""
    attributes: tuple[float, int, int, int] | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer.

    Attributes:
        digest: its diff id, the digest of its archive.
        entries: in the archive's order.
    """

    digest: str
    entries: tuple[LayerEntry, ...]

    @cached_property
    def size(self) -> int:
        """Bytes of content that the layer stores, also of files that a later layer hides."""
        return sum(entry.size for entry in self.entries)

    def stored_below(self, directory: str) -> int:
        """Return the bytes of content that the layer stores below a directory."""
        return sum(entry.size for entry in self.entries if entry.path.startswith(f"{directory}/"))


@dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """An image's configuration.

    Attributes:
        platform: operating system and processor, such as "linux/amd64".
        variables: of the environment that its containers start with.
        labels: its labels.
        history: how each step was made, the steps that made no layer included.
    """

    platform: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    history: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image that was read.

    Attributes:
        reference: as it was asked for.
        identifier: the engine's.
        venv_dir: where its venvs live.
        layers: lowest first.
        made_by: for each layer, the instruction that made it, or "".
        facts: what is known of files' contents.
        settings: what its configuration says.
    """

    reference: str
    identifier: str
    venv_dir: str
    layers: tuple[Layer, ...]
    made_by: tuple[str, ...]
    facts: FileFacts
    settings: ImageSettings = ImageSettings()

    @cached_property
    def tree(self) -> FileSystem:
        """The file system that a container sees."""
        return file_system(self.layers)


@dataclass(frozen=True, slots=True)
class Node:
    """What a path of the file system leads to; hardlinks of one file share one node.

    Attributes:
        inode: a number of its own.
        kind: as in `LayerEntry`, but never "hardlink".
        layer: index of the layer that holds it.
        size, sha256, target: as in `LayerEntry`.
        mode: its permissions; a directory that no layer says is open to everyone.
    """

    inode: int
    kind: Kind
    layer: int
    size: int = 0
    sha256: str = ""
    target: str = ""
    mode: int = 0o755


@dataclass(frozen=True)
class FileSystem:
    """A file system.

    Attributes:
        nodes: path → what is there; the root is "/".
    """

    nodes: Mapping[str, Node]

    @cached_property
    def _paths(self) -> list[str]:
        return sorted(self.nodes)

    def below(self, directory: str) -> Iterator[tuple[str, Node]]:
        """Iterate over every path below a directory, itself not included, in order."""
        prefix = directory.rstrip("/") + "/"
        paths = self._paths
        for position in range(bisect_left(paths, prefix), len(paths)):
            if not paths[position].startswith(prefix):
                return
            if paths[position] != prefix:
                yield paths[position], self.nodes[paths[position]]

    def names_in(self, directory: str) -> list[str]:
        """Return the names of what is directly in a directory, sorted."""
        skipped = len(directory.rstrip("/")) + 1
        return [path[skipped:] for path, _ in self.below(directory) if "/" not in path[skipped:]]

    def resolve(self, path: str) -> str | None:
        """Return where a path leads when its symbolic links are followed; None when that is nowhere."""
        left = [part for part in reversed(path.split("/")) if part]
        reached, followed = "/", 0
        while left:
            part = left.pop()
            if part in {".", ".."}:
                reached = posixpath.dirname(reached) if part == ".." else reached
                continue
            step = posixpath.join(reached, part)
            node = self.nodes.get(step)
            if node is None:
                return None
            if node.kind != "symlink":
                reached = step
                continue
            followed += 1
            if followed > _MOST_LINKS:
                return None
            if node.target.startswith("/"):
                reached = "/"
            left += [word for word in reversed(node.target.split("/")) if word]
        return reached


def absolute(name: str) -> str:
    """Return the absolute path of a name in a layer's archive (`./usr/bin/`, `usr/bin` and `/usr/bin` are one)."""
    return posixpath.normpath("/" + name.lstrip("/"))


def is_whiteout(path: str) -> bool:
    """Say whether an entry hides something of the layers below instead of being something."""
    return posixpath.basename(path).startswith(WHITEOUT)


def file_system(layers: Sequence[Layer]) -> FileSystem:
    """Apply layers upon each other, as a container engine does.

    Args:
        layers: lowest first.

    Returns:
        The file system that they make.
    """
    inodes = count()
    nodes = {"/": Node(next(inodes), "directory", 0)}
    for index, layer in enumerate(layers):
        below = nodes
        nodes = _without_hidden(nodes, layer)
        complete = {"/"}
        for entry in layer.entries:
            if is_whiteout(entry.path) or entry.path == "/":
                continue
            _make_parents(nodes, entry.path, complete, index, inodes)
            if entry.kind == "directory":
                complete.add(entry.path)
            if entry.kind == "hardlink":
                # Its target may lie in a layer below, and even be hidden by this one.
                target = nodes.get(entry.target) or below.get(entry.target)
                nodes[entry.path] = target or Node(next(inodes), "file", index)
            else:
                nodes[entry.path] = Node(
                    next(inodes),
                    entry.kind,
                    index,
                    size=entry.size,
                    sha256=entry.sha256,
                    target=entry.target,
                    mode=entry.attributes[1] if entry.attributes else 0o755,
                )
    return FileSystem(nodes)


def _without_hidden(nodes: dict[str, Node], layer: Layer) -> dict[str, Node]:
    """Return what a layer leaves of those below: not what it whites out, nor what is below a replaced directory."""
    removed: set[str] = set()
    opaque: set[str] = set()
    for entry in layer.entries:
        directory, name = posixpath.split(entry.path)
        if name == OPAQUE:
            opaque.add(directory)
        elif name.startswith(WHITEOUT):
            # Other names with this prefix are notes of a storage driver to itself.
            if not name.startswith(_WHITEOUT_METADATA):
                removed.add(posixpath.join(directory, name.removeprefix(WHITEOUT)))
        elif entry.kind != "directory" and (old := nodes.get(entry.path)) and old.kind == "directory":
            removed.add(entry.path)
    if not removed and not opaque:
        return dict(nodes)
    known: dict[str, bool] = {"/": False}

    def hidden(path: str) -> bool:
        # One pass over all paths, each of whose parents is decided once: whiteouts may be many, and paths too.
        if (answer := known.get(path)) is None:
            parent = posixpath.dirname(path)
            answer = known[path] = path in removed or parent in opaque or hidden(parent)
        return answer

    return {path: node for path, node in nodes.items() if not hidden(path)}


def _make_parents(nodes: dict[str, Node], path: str, complete: set[str], layer: int, inodes: Iterator[int]) -> None:
    """See that a path's parents are directories: archives may leave them out, and they replace what else is there."""
    missing = []
    parent = posixpath.dirname(path)
    while parent not in complete:
        missing.append(parent)
        parent = posixpath.dirname(parent)
    for directory in reversed(missing):
        node = nodes.get(directory)
        if node is None or node.kind != "directory":
            nodes[directory] = Node(next(inodes), "directory", layer)
        complete.add(directory)
