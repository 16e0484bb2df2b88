"""Slots: every file in exactly one, and a change of one distribution moves nothing else."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenroom.errors import BuildError
from greenroom.lock import Artifact
from greenroom.slots import (
    ENGINE_LAYERS,
    LAYER_LIMIT_BYTES,
    LAYERS,
    SLOTS,
    STAGE_LAYERS,
    TIERS,
    assign,
    check_layer_count,
    oversized,
    slot_of,
)
from greenroom.source_builds import PLACES

DOCKERFILE = Path(__file__).parents[2] / "docker" / "Dockerfile"

LARGE_BYTES = TIERS[0][0]
NAMES = st.from_regex(r"[a-z][a-z0-9]{0,8}(-[a-z0-9]{1,4})?", fullmatch=True)
SIZES = st.one_of(
    st.integers(0, LARGE_BYTES * 2), st.sampled_from([above + more for above, _ in TIERS for more in (0, 1)])
)


def make(name: str, size: int, version: str = "1") -> Artifact:
    return Artifact(
        filename=f"{name.replace('-', '_')}-{version}-py3-none-any.whl",
        name=name,
        version=version,
        sha256=hashlib.sha256(f"{name} {version}".encode()).hexdigest(),
        size=size,
        kind="wheel",
    )


ARTIFACTS = st.lists(st.builds(make, NAMES, SIZES), min_size=1, max_size=40, unique_by=lambda item: item.name)


@given(artifacts=ARTIFACTS)
def test_every_file_is_in_exactly_one_slot(artifacts: list[Artifact]) -> None:
    slots = assign(artifacts)
    assert len(slots) == SLOTS
    assert sorted(artifact for slot in slots for artifact in slot) == sorted(artifacts)
    assert all(list(slot) == sorted(slot) for slot in slots)
    for number, slot in enumerate(slots):
        assert all(slot_of(artifact) == number for artifact in slot)


@given(artifacts=ARTIFACTS)
def test_large_files_come_before_small_ones(artifacts: list[Artifact]) -> None:
    slots = assign(artifacts)
    assert [above for above, _ in TIERS] == sorted((above for above, _ in TIERS), reverse=True)
    first, below = 0, float("inf")
    for above, count in TIERS:
        sizes = [artifact.size for slot in slots[first : first + count] for artifact in slot]
        # A size that the lock does not give is 0, and counts as large.
        assert all(above < size <= below or (size == 0 and first == 0) for size in sizes)
        first, below = first + count, above
    assert first == SLOTS


def tier_of(artifact: Artifact) -> int:
    return sum((artifact.size or float("inf")) > above for above, _ in TIERS)


def changed_slots(before: list[Artifact], after: list[Artifact]) -> int:
    return sum(old != new for old, new in zip(assign(before), assign(after), strict=True))


@given(artifacts=ARTIFACTS, data=st.data())
def test_a_bump_changes_one_slot_or_two_when_it_crosses_the_limit(
    artifacts: list[Artifact], data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, len(artifacts) - 1))
    old = artifacts[position]
    new = make(old.name, data.draw(SIZES), version="2")
    bumped = [*artifacts[:position], new, *artifacts[position + 1 :]]
    crosses = tier_of(old) != tier_of(new)
    assert changed_slots(artifacts, bumped) == (2 if crosses else 1)


@given(artifacts=ARTIFACTS, data=st.data())
def test_adding_or_removing_one_changes_one_slot(artifacts: list[Artifact], data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(artifacts) - 1))
    fewer = [*artifacts[:position], *artifacts[position + 1 :]]
    assert changed_slots(artifacts, fewer) == 1
    assert changed_slots(fewer, artifacts) == 1


@given(artifact=st.builds(make, NAMES, SIZES), content=st.text(max_size=5))
def test_the_slot_depends_on_name_and_size_alone(artifact: Artifact, content: str) -> None:
    other = dataclasses.replace(artifact, version=content, filename=content, sha256=content, kind="sdist")
    assert slot_of(other) == slot_of(artifact)


# What a change of the assignment would move: every layer of every image built before it.
KNOWN_SLOTS = [
    ("torch", LARGE_BYTES + 1, 1),
    ("numpy", LARGE_BYTES + 1, 2),
    ("pyarrow", LARGE_BYTES + 1, 8),
    ("certifi", 1000, 21),
    ("idna", 1000, 21),
    ("aiohttp", 1_700_000, 17),
    ("numpy", 0, 2),
]


@pytest.mark.parametrize(("name", "size", "slot"), KNOWN_SLOTS)
def test_known_slots(name: str, size: int, slot: int) -> None:
    assert slot_of(make(name, size)) == slot


SLOT_LINE = re.compile(
    r"RUN --network=none --mount=from=installer,target=/installer "
    r"--mount=from=wheels\S*,source=/slots/(\d\d),target=/slot "
    r'PYTHONDONTWRITEBYTECODE=1 python3 /installer/install_slot\.py /slot "\$VENV_DIR" (\d\d)'
)


def test_the_dockerfile_has_one_line_for_each_slot_in_order() -> None:
    lines = [line for line in DOCKERFILE.read_text().splitlines() if ",source=/slots/" in line]
    matches = [SLOT_LINE.fullmatch(line) for line in lines]
    numbers = [f"{number:02d}" for number in range(SLOTS)]
    assert [match and match.groups() for match in matches] == [(number, number) for number in numbers]


def test_a_layer_that_registries_refuse_is_a_warning_that_names_the_largest_packages() -> None:
    half = LAYER_LIMIT_BYTES // 2
    first = make("torch", half)
    # Another version of the same name is in the same slot, whatever the assignment is.
    second = make("torch", half + 1, "2")
    (warning,) = oversized([first, second, make("small", 10)])
    assert f"slot {slot_of(first):02d}" in warning
    assert "torch 2 (5.0 GB), torch 1 (5.0 GB)" in warning
    assert oversized([first]) == []


def test_a_base_image_with_too_many_layers_is_refused_before_the_build() -> None:
    check_layer_count(ENGINE_LAYERS - LAYERS)
    with pytest.raises(BuildError, match=f"has {ENGINE_LAYERS - LAYERS + 1} layers"):
        check_layer_count(ENGINE_LAYERS - LAYERS + 1)


def test_the_dockerfile_makes_as_many_layers_as_are_counted() -> None:
    text = DOCKERFILE.read_text()

    def layers(first: str, end: str) -> int:
        return len(re.findall(r"^(?:RUN|COPY|ADD) ", text[text.index(first) : text.index(end)], re.MULTILINE))

    assert layers("AS slots", "FROM ${COMPILE_IMAGE}") == LAYERS
    assert layers(" AS source-built-1", " AS release") == STAGE_LAYERS * PLACES
