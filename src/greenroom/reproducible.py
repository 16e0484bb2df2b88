"""Whether two builds of one plan gave the same bytes, and the first file that says they did not."""

from __future__ import annotations

from itertools import zip_longest

from greenroom.image_tree import Image, Layer, LayerEntry


def first_difference(first: Image, second: Image) -> str:
    """Compare the layers of two images.

    Args:
        first: an image.
        second: another build of it.

    Returns:
        "" when every layer has the same digest; else the first differing layer, counted from 1, and the first entry
        that differs in it.
    """
    pairs = zip_longest(first.layers, second.layers)
    for number, (one, other) in enumerate(pairs, 1):
        if one is None or other is None:
            return f"one image has {len(first.layers)} layers, the other {len(second.layers)}"
        if one.digest != other.digest:
            made_by = first.made_by[number - 1]
            return f"layer {number} of {len(first.layers)} ({made_by}): {_first_entry(one, other)}"
    return ""


def _first_entry(one: Layer, other: Layer) -> str:
    mine = {entry.path: entry for entry in one.entries}
    others = {entry.path: entry for entry in other.entries}
    for path in sorted(set(mine) | set(others)):
        left, right = mine.get(path), others.get(path)
        if left is None or right is None:
            return f"{path} is in one of them only"
        if left != right:
            return f"{path} {_how(left, right)}"
    for path in sorted(mine):
        if mine[path].attributes != others[path].attributes:
            return f"{path} has {_told(mine[path])} in one and {_told(others[path])} in the other"
    same_order = [entry.path for entry in one.entries] == [entry.path for entry in other.entries]
    return "the same files in another form of archive" if same_order else "the same files in another order"


def _told(entry: LayerEntry) -> str:
    if entry.attributes is None:
        return "unknown attributes"
    time, mode, owner, group = entry.attributes
    return f"time {time:.0f}, mode {mode:o}, owner {owner}:{group}"


def _how(left: LayerEntry, right: LayerEntry) -> str:
    if left.kind != right.kind:
        return f"is a {left.kind} in one and a {right.kind} in the other"
    if left.target != right.target:
        return f"links to {left.target} in one and to {right.target} in the other"
    return f"has {left.size} bytes of sha256 {left.sha256[:16]} in one and {right.size} of {right.sha256[:16]} in the other"
