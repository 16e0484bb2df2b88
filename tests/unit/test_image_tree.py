"""The file system that layers make: whiteouts, opaque directories, links within and across layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.unit.layers import directory, file, hardlink, layers, symlink

from greenroom.image_tree import FileSystem, LayerEntry, absolute, file_system


def tree(*several: Sequence[LayerEntry]) -> FileSystem:
    return file_system(layers(*several))


def paths(found: FileSystem, below: str = "/") -> list[str]:
    return [path for path, _ in found.below(below)]


def test_names_of_archives_are_one_kind_of_path() -> None:
    assert {absolute(name) for name in ("usr/bin", "./usr/bin/", "/usr/bin", "usr//bin")} == {"/usr/bin"}
    assert {absolute(name) for name in ("./", ".", "/", "")} == {"/"}


def test_a_later_layer_replaces_a_file() -> None:
    found = tree([file("/a", "old"), file("/b", "b")], [file("/a", "newer")])
    assert (found.nodes["/a"].size, found.nodes["/a"].layer) == (5, 1)
    assert found.nodes["/b"].layer == 0


def test_a_whiteout_removes_what_is_below_it_and_nothing_with_a_like_name() -> None:
    found = tree([file("/d/x/f"), file("/d/xy"), file("/d/y")], [file("/d/.wh.x")])
    assert paths(found) == ["/d", "/d/xy", "/d/y"]


def test_a_whiteout_does_not_touch_its_own_layer_whatever_the_order() -> None:
    for upper in ([file("/d/.wh.x"), file("/d/x", "new")], [file("/d/x", "new"), file("/d/.wh.x")]):
        found = tree([directory("/d"), file("/d/x", "old")], upper)
        assert found.nodes["/d/x"].size == 3
        assert found.nodes["/d/x"].layer == 1


def test_an_opaque_directory_hides_all_that_lay_in_it() -> None:
    found = tree(
        [file("/d/a"), file("/d/e/f/g"), file("/other")], [directory("/d"), file("/d/n"), file("/d/.wh..wh..opq")]
    )
    assert paths(found) == ["/d", "/d/n", "/other"]


def test_notes_of_a_storage_driver_are_nothing() -> None:
    assert paths(tree([file("/.wh..wh.plnk"), file("/.wh..wh.aufs"), file("/a")])) == ["/a"]


def test_a_file_or_link_in_the_place_of_a_directory_replaces_all_of_it() -> None:
    for new in (file("/d"), symlink("/d", "elsewhere")):
        assert paths(tree([file("/d/a/b"), file("/e")], [new])) == ["/d", "/e"]


def test_a_directory_in_the_place_of_a_file_or_link_replaces_it() -> None:
    for old in (file("/d", "text"), symlink("/d", "e")):
        found = tree([old], [file("/d/a")])
        assert paths(found) == ["/d", "/d/a"]
        assert found.nodes["/d"].kind == "directory"


def test_parents_that_an_archive_leaves_out_are_there() -> None:
    found = tree([file("/a/b/c")])
    assert paths(found) == ["/a", "/a/b", "/a/b/c"]
    assert found.names_in("/a") == ["b"]
    assert found.names_in("/") == ["a"]


def test_a_directory_that_is_named_again_keeps_its_content() -> None:
    assert paths(tree([file("/d/a")], [directory("/d")])) == ["/d", "/d/a"]


def test_hardlinks_share_a_file_also_across_layers_and_after_the_first_name_is_gone() -> None:
    found = tree([file("/a", "text"), hardlink("/b", "/a")], [hardlink("/c", "/b"), file("/.wh.a")])
    assert paths(found) == ["/b", "/c"]
    assert found.nodes["/b"] is found.nodes["/c"]
    assert found.nodes["/c"].layer == 0


def test_a_hardlink_to_what_its_own_layer_hides_has_the_content() -> None:
    assert tree([file("/a", "text")], [file("/.wh.a"), hardlink("/b", "/a")]).nodes["/b"].size == 4


def test_a_replaced_name_leaves_the_other_hardlinks_alone() -> None:
    found = tree([file("/a", "text"), hardlink("/b", "/a")], [file("/a", "other text")])
    assert (found.nodes["/a"].size, found.nodes["/b"].size) == (10, 4)


def test_symbolic_links_are_followed_as_far_as_they_lead() -> None:
    found = tree(
        [
            file("/real/dir/f"),
            symlink("/abs", "/real/dir"),
            symlink("/real/rel", "../abs"),
            symlink("/loop", "loop"),
            symlink("/gone", "nowhere"),
        ]
    )
    assert found.resolve("/real/rel/f") == "/real/dir/f"
    assert found.resolve("/abs/../x") is None
    assert found.resolve("/abs/..") == "/real"
    assert found.resolve("/loop") is None
    assert found.resolve("/gone") is None


def test_layers_are_values() -> None:
    layer = layers([file("/a")])[0]
    with pytest.raises(AttributeError):
        layer.digest = "other"  # type: ignore[misc]
    assert replace(layer, digest="other").entries == layer.entries
