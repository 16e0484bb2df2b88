"""Estimates: from the plan alone, every file once, and what is not known is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from greenroom.estimate import ON_DISK, RATIOS, TOOLS_BYTES, Estimate, estimate, kind_of, readable
from greenroom.lock import Artifact
from greenroom.plan import Plan
from greenroom.slots import LAYERS, STAGE_LAYERS
from greenroom.source_builds import BuildSettings, SourceBuild

MakePlan = Callable[..., Plan]


def of(filename: str, size: int, kind: str = "wheel") -> Artifact:
    return Artifact(filename=filename, name=filename, version="1", sha256=filename, size=size, kind=kind)


KINDS = [
    ("six-1.17.0-py2.py3-none-any.whl", "wheel", "pure"),
    ("numpy-2.3.0-cp313-cp313-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl", "wheel", "native"),
    ("vllm-0.29.0-cp38-abi3-manylinux_2_31_x86_64.whl", "wheel", "native"),
    ("nvidia_cublas-13.1.0.3-py3-none-manylinux_2_27_x86_64.whl", "wheel", "library"),
    ("old-name-1.0-1-py3-none-any.whl", "wheel", "pure"),
    ("antlr4-python3-runtime-4.9.3.tar.gz", "sdist", "source"),
]


@pytest.mark.parametrize(("filename", "kind", "expected"), KINDS)
def test_kinds_of_files(filename: str, kind: str, expected: str) -> None:
    assert kind_of(of(filename, 1, kind)) == expected


@pytest.fixture
def plan(make_sample_plan: MakePlan) -> Plan:
    """A plan with files of three kinds, one of which has no size."""
    artifacts = (
        of("a-1-py3-none-any.whl", 1_000_000),
        of("b-1-cp313-cp313-manylinux_2_28_x86_64.whl", 100_000_000),
        of("c-1-py3-none-any.whl", 0),
        of("d-1.tar.gz", 2_000_000, "sdist"),
    )
    return dataclasses.replace(make_sample_plan(), artifacts=artifacts)


def expected(column: int) -> int:
    sizes = {"pure": 1_000_000, "native": 100_000_000, "source": 2_000_000}
    return round(sum(size * RATIOS[kind][column] for kind, size in sizes.items()))


def test_an_estimate_weighs_every_file_once_by_its_kind(plan: Plan) -> None:
    found = estimate(plan)
    assert found == Estimate(
        download_bytes=103_000_000,
        unpacked_bytes=expected(0),
        bytecode_bytes=expected(1),
        layers=LAYERS,
        tools_bytes=TOOLS_BYTES,
        unknown=("c-1-py3-none-any.whl",),
    )
    assert "c-1-py3-none-any.whl, whose size the lock does not say" in found.one_line()
    assert "whose size" not in dataclasses.replace(found, unknown=()).one_line()


def test_source_built_stages_take_layers_and_tools_of_their_own(plan: Plan) -> None:
    build = SourceBuild(filename="d-1.tar.gz", stage="second", settings=BuildSettings(), requires=())
    found = estimate(dataclasses.replace(plan, source_stages=("first", "second"), builds=(build,)))
    assert (found.layers, found.tools_bytes) == (LAYERS + 2 * STAGE_LAYERS, 2 * TOOLS_BYTES)
    # What is built where wheels are fetched has neither.
    elsewhere = dataclasses.replace(plan, builds=(dataclasses.replace(build, stage=""),))
    assert estimate(elsewhere) == estimate(plan)


def test_the_disk_holds_the_cache_the_copies_and_the_layers(plan: Plan) -> None:
    found = estimate(plan)
    least = 2 * found.download_bytes + found.unpacked_bytes + found.tools_bytes
    assert found.disk_bytes(bytecode=False) == round(least * ON_DISK)
    assert found.disk_bytes() == round((least + found.bytecode_bytes) * ON_DISK)
    assert found.disk_bytes(bytecode=False, packed=True) == round((least + found.download_bytes) * ON_DISK)
    # The second build finds the fetched files in the cache, and nothing else.
    assert found.disk_bytes(twice=True) > 2 * found.disk_bytes() - found.download_bytes * ON_DISK
    assert found.to_json()["disk_bytes"] == found.disk_bytes()


def test_an_empty_plan_takes_the_tools_alone(make_sample_plan: MakePlan) -> None:
    found = estimate(dataclasses.replace(make_sample_plan(), artifacts=()))
    assert (found.download_bytes, found.unpacked_bytes) == (0, 0)
    assert found.disk_bytes() == round(TOOLS_BYTES * ON_DISK)


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (0, "0 kB"),
        (999_000, "999 kB"),
        (999_600, "1.0 MB"),
        (1_350_000, "1.4 MB"),
        (437_000_000, "437 MB"),
        (999_900_000, "1.0 GB"),
        (6_600_000_000, "6.6 GB"),
        (123_000_000_000, "123 GB"),
    ],
)
def test_sizes_are_readable(size: int, said: str) -> None:
    assert readable(size) == said
