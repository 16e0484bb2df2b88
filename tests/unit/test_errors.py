"""Each kind of failure has its own documented exit code and is told in one line."""

from __future__ import annotations

import pytest

from greenroom import errors
from greenroom.errors import ERROR_CLASSES, GreenroomError

EXIT_CODES = {
    "ImageDiffersError": 1,
    "UsageError": 2,
    "EngineError": 3,
    "BuildError": 4,
    "LockError": 5,
    "BaseImageError": 6,
    "PublishError": 7,
}


def test_exit_codes_are_the_documented_ones_and_unique() -> None:
    assert {kind.__name__: kind.exit_code for kind in ERROR_CLASSES} == EXIT_CODES
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES)


def test_the_table_names_every_class() -> None:
    defined = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, GreenroomError) and value is not GreenroomError
    }
    assert set(ERROR_CLASSES) == defined


ONE_LINES = [
    (("what", "", ""), "what"),
    (("what.", "", ""), "what"),
    (("what", "cause", ""), "what | likely cause: cause"),
    (("what", "", "command"), "what | next: command"),
    (("what", "cause.", "command"), "what | likely cause: cause | next: command"),
    (
        ("several\nlines\r\nof it\n", "a\n\ncause", "run\n\tthis"),
        "several lines of it | likely cause: a cause | next: run this",
    ),
    (("a\x0bb\x85c\u2028d", "", ""), "a b c d"),
]


@pytest.mark.parametrize(("parts", "line"), ONE_LINES)
def test_a_failure_is_one_line(parts: tuple[str, str, str], line: str) -> None:
    what, cause, next_step = parts
    error = GreenroomError(what, cause=cause, next_step=next_step)
    assert error.one_line() == str(error) == line
    assert len(line.splitlines()) == 1
