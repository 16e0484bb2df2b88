"""What is an image reference, and what is refused before an engine is asked."""

from __future__ import annotations

import pytest

from greenroom.build import creation_time
from greenroom.container import check_reference, split_reference
from greenroom.errors import UsageError

GOOD = [
    "greenroom:latest",
    "python:3.13-slim",
    "registry.example:5000/team/job_a/image.b:1.0",
    "localhost/job",
    "127.0.0.1:5000/job:A_b.c-d",
    "job@sha256:" + "0" * 64,
    "sha256:" + "a" * 64,
]
BAD = ["", "Bad Tag", "job:", "Job:1", "job:a b", "-job", "job//x", "job:" + "x" * 129, "job@sha256:00", "--help"]


@pytest.mark.parametrize("reference", GOOD)
def test_a_reference_is_taken_as_it_is(reference: str) -> None:
    assert check_reference(reference) == reference


@pytest.mark.parametrize("reference", BAD)
def test_what_is_no_reference_is_bad_usage(reference: str) -> None:
    with pytest.raises(UsageError, match="is no image reference"):
        check_reference(reference)


@pytest.mark.parametrize("epoch", ["abc", "-1", "1.5", " 1"])
def test_an_epoch_that_is_no_number_is_bad_usage(epoch: str) -> None:
    with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH"):
        creation_time({"SOURCE_DATE_EPOCH": epoch})


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("name", ("name", "latest")),
        ("name:1.0", ("name", "1.0")),
        ("registry.test:5000/team/name", ("registry.test:5000/team/name", "latest")),
        ("registry.test:5000/team/name:1.0", ("registry.test:5000/team/name", "1.0")),
    ],
)
def test_a_reference_is_split_at_its_tag_and_not_at_a_port(reference: str, parts: tuple[str, str]) -> None:
    assert split_reference(reference) == parts
