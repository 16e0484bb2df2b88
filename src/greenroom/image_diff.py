"""How two images differ: by venv and distribution, and in the layers that a push or pull has to move. Pure."""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from greenroom.image_inspector import STAMP
from greenroom.image_tree import Image, Node
from greenroom.sizes import Installed, LayerSize, Venv, find_venvs, is_bytecode, layer_sizes


@dataclass(frozen=True, kw_only=True)
class VenvChange:
    """What differs between a venv in A and in B.

    Attributes:
        venvs: the actors whose venv it is, or the set's path in the venv directory; sorted.
        added, removed: distribution → version.
        changed: distribution → the versions in A and B.
        rebuilt: distributions of one version whose files are not the same.
        files: other paths in the venv that differ, but stamps and bytecode.
    """

    venvs: tuple[str, ...]
    added: Mapping[str, str]
    removed: Mapping[str, str]
    changed: Mapping[str, tuple[str, str]]
    rebuilt: tuple[str, ...]
    files: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Whether nothing differs."""
        return not (self.added or self.removed or self.changed or self.rebuilt or self.files)


@dataclass(frozen=True, kw_only=True)
class ImageDiff:
    """What differs between two images.

    Attributes:
        before, after: the references of A and B.
        venvs_added, venvs_removed: names of venvs.
        venvs_same: how many venvs are in both and do not differ.
        changes: what differs in the venvs that are in both.
        layers_new: the layers of B that A does not have, largest first; equal layers once.
        layers_gone: those of A that B does not have.
        layers_touched: digest of a new layer → digest of one that is gone and has the same content: they differ in
            times, owners or permissions only, so that a build moves what it need not.
        new_size: bytes of content in the new layers.
        new_venv_size: what of that is below the venv directory.
        new_share: `new_venv_size` as a part of what all of B's layers store there; 0 when that is nothing.
    """

    before: str
    after: str
    venvs_added: tuple[str, ...]
    venvs_removed: tuple[str, ...]
    venvs_same: int
    changes: tuple[VenvChange, ...]
    layers_new: tuple[LayerSize, ...]
    layers_gone: tuple[LayerSize, ...]
    layers_touched: Mapping[str, str]
    new_size: int
    new_venv_size: int
    new_share: float

    @property
    def is_empty(self) -> bool:
        """Whether the images have the same layers and venvs."""
        return not (self.venvs_added or self.venvs_removed or self.changes or self.layers_new or self.layers_gone)


def new_layers(before: Image, after: Image) -> tuple[LayerSize, ...]:
    """Return the layers of one image that another does not have, largest first; equal layers once."""
    known = {layer.digest for layer in before.layers}
    found = []
    for layer in layer_sizes(after):
        if layer.digest not in known:
            known.add(layer.digest)
            found.append(layer)
    return tuple(found)


def new_layer_bytes(before: Image, after: Image) -> int:
    """Return the bytes of content in the layers that are new."""
    return sum(layer.size for layer in new_layers(before, after))


def new_venv_share(before: Image, after: Image) -> float:
    """Return which part of all bytes that an image's layers store below its venv directory lies in new layers."""
    stored = sum({layer.digest: layer.stored_below(after.venv_dir) for layer in after.layers}.values())
    return sum(layer.venv_size for layer in new_layers(before, after)) / stored if stored else 0.0


def touched_layers(before: Image, after: Image) -> dict[str, str]:
    """Return, for each new layer whose entries and content another image has too, the digest that it has there."""
    known = {layer.digest for layer in before.layers}
    kept = {layer.digest for layer in after.layers}
    gone = {frozenset(layer.entries): layer.digest for layer in before.layers if layer.digest not in kept}
    new = {layer.digest: frozenset(layer.entries) for layer in after.layers if layer.digest not in known}
    return {digest: gone[entries] for digest, entries in new.items() if entries in gone}


def compare_images(before: Image, after: Image) -> ImageDiff:
    """Compare two images.

    Args:
        before: A.
        after: B.

    Returns:
        What differs.
    """
    old, new = _venvs_by_name(before), _venvs_by_name(after)
    pairs: dict[tuple[Venv, Venv], list[str]] = defaultdict(list)
    for name in sorted(set(old) & set(new)):
        pairs[old[name], new[name]].append(name)
    found = [_compare_venvs(_Content(before, a), _Content(after, b), names) for (a, b), names in pairs.items()]
    added = new_layers(before, after)
    return ImageDiff(
        before=before.reference,
        after=after.reference,
        venvs_added=tuple(sorted(set(new) - set(old))),
        venvs_removed=tuple(sorted(set(old) - set(new))),
        venvs_same=sum(len(change.venvs) for change in found if change.is_empty),
        changes=tuple(change for change in found if not change.is_empty),
        layers_new=added,
        layers_gone=new_layers(after, before),
        layers_touched=touched_layers(before, after),
        new_size=sum(layer.size for layer in added),
        new_venv_size=sum(layer.venv_size for layer in added),
        new_share=new_venv_share(before, after),
    )


def _venvs_by_name(image: Image) -> dict[str, Venv]:
    """Return actor → its venv; a set that no actor leads to goes by its path in the venv directory."""
    venvs = find_venvs(image.tree, image.venv_dir)
    return {
        name: venv for venv in venvs for name in venv.actors or (posixpath.relpath(venv.directory, image.venv_dir),)
    }


class _Content:
    """What is in one venv, comparable with another's: distribution → versions, and path → owner and content."""

    def __init__(self, image: Image, venv: Venv) -> None:
        installed = Installed(image, venv)
        self.versions: dict[str, str] = {}
        for name, version in installed.distributions:
            self.versions[name] = f"{self.versions[name]}, {version}" if name in self.versions else version
        self.files: dict[str, dict[str, tuple[str, ...]]] = defaultdict(dict)
        skipped = len(venv.directory) + 1
        for path, node in image.tree.below(venv.directory):
            if node.kind != "directory" and not is_bytecode(path):
                owner = installed.owner(path)
                self.files[owner[0] if owner else ""][path[skipped:]] = _content(node)


def _content(node: Node) -> tuple[str, ...]:
    return (node.kind, node.sha256, node.target)


def _compare_venvs(old: _Content, new: _Content, names: list[str]) -> VenvChange:
    both = sorted(set(old.versions) & set(new.versions))
    changed = {
        name: (old.versions[name], new.versions[name]) for name in both if old.versions[name] != new.versions[name]
    }
    rebuilt = [name for name in both if name not in changed and old.files.get(name, {}) != new.files.get(name, {})]
    mine, others = old.files.get("", {}), new.files.get("", {})
    files = [path for path in sorted(set(mine) | set(others)) if mine.get(path) != others.get(path) and path != STAMP]
    return VenvChange(
        venvs=tuple(names),
        added={name: new.versions[name] for name in sorted(set(new.versions) - set(old.versions))},
        removed={name: old.versions[name] for name in sorted(set(old.versions) - set(new.versions))},
        changed=changed,
        rebuilt=tuple(rebuilt),
        files=tuple(files),
    )
