"""The command line: invoke's program with this project's exit codes and words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from itertools import pairwise

from invoke.exceptions import Exit, ParseError
from invoke.parser.context import to_flag
from invoke.program import Program

from greenroom.errors import UsageError
from greenroom.tasks import namespace


class GreenroomProgram(Program):
    """invoke's program; `greenroom engine start` is its task `engine.start`, and bad usage exits 2."""

    def __init__(self) -> None:
        super().__init__(version=version("greenroom"), namespace=namespace, name="greenroom", binary="greenroom")

    def parse_core(self, argv: list[str] | None) -> None:
        """Parse the words that are not any task's."""
        with _usage_errors():
            super().parse_core(join_words(argv or []))

    def parse_tasks(self) -> None:
        """Parse each task's words."""
        with _usage_errors():
            super().parse_tasks()
            arguments = [argument for context in self.tasks for argument in context.args.values()]
            names = [name for argument in arguments if argument.kind is list for name in argument.names]
            check_list_options(self.core.unparsed, {to_flag(name) for name in names})


def join_words(argv: list[str]) -> list[str]:
    """Return a command line with `noun verb` written as invoke's `noun.verb`, where the noun has such a verb."""
    joined = list(argv)
    for position in range(1, len(joined) - 1):
        noun, verb = joined[position], joined[position + 1]
        collection = namespace.collections.get(noun)
        if collection is not None and verb in collection.tasks:
            joined[position : position + 2] = [f"{noun}.{verb}"]
            break
        if not noun.startswith("-"):
            break
    return joined


def check_list_options(words: list[str], flags: set[str]) -> None:
    """Check that options which may be repeated have a value; invoke takes one without for an empty list.

    Args:
        words: the words of a command line.
        flags: the options.

    Raises:
        ParseError: one has none.
    """
    for word, following in pairwise([*words, "-"]):
        if word in flags and following.startswith("-"):
            raise ParseError(f"{word} needs a value")


@contextmanager
def _usage_errors() -> Iterator[None]:
    try:
        yield
    except ParseError as error:
        failure = UsageError(str(error), next_step="greenroom --help, or greenroom --help <command>")
        raise Exit(f"greenroom: {failure.one_line()}", failure.exit_code) from error
