"""Two builds of one plan: the first entry that differs is named, whatever it differs in."""

from __future__ import annotations

import dataclasses

import pytest
from tests.unit.layers import VENVS, directory, file, symlink

from greenroom.file_facts import FileFacts
from greenroom.image_tree import Image, Layer, LayerEntry
from greenroom.reproducible import first_difference

SAME = dataclasses.replace(directory("/opt"), attributes=(0.0, 0o755, 0, 0))


def image(*entries: LayerEntry, digest: str) -> Image:
    layer = Layer(digest=digest, entries=(SAME, *entries))
    return Image(
        reference=digest, identifier=digest, layers=(layer,), made_by=("RUN make",), venv_dir=VENVS, facts=FileFacts()
    )


def test_equal_digests_are_no_difference() -> None:
    assert first_difference(image(file("/a"), digest="x"), image(file("/b"), digest="x")) == ""


def with_attributes(entry: LayerEntry, time: float, mode: int, owner: int) -> LayerEntry:
    return dataclasses.replace(entry, attributes=(time, mode, owner, owner))


CASES = [
    (file("/a"), file("/b"), "/a is in one of them only"),
    (file("/a", "1"), file("/a", "22"), "/a has 1 bytes of sha256 "),
    (symlink("/a", "x"), symlink("/a", "y"), "/a links to x in one and to y in the other"),
    (symlink("/a", "x"), file("/a"), "/a is a symlink in one and a file in the other"),
    (
        with_attributes(file("/a"), 1, 0o644, 0),
        with_attributes(file("/a"), 2, 0o600, 7),
        "/a has time 1, mode 644, owner 0:0 in one and time 2, mode 600, owner 7:7 in the other",
    ),
    (file("/a"), file("/a"), "the same files in another form of archive"),
]


@pytest.mark.parametrize(("one", "other", "said"), CASES)
def test_the_first_difference_is_named(one: LayerEntry, other: LayerEntry, said: str) -> None:
    told = first_difference(image(one, digest="x"), image(other, digest="y"))
    assert told.startswith("layer 1 of 1 (RUN make): ") and said in told
