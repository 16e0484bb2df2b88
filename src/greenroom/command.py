"""What every task has: its words' help, and an end with the documented exit code and one line."""

from __future__ import annotations

import functools
import logging
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import Task, task

from greenroom.errors import EngineError, GreenroomError, UsageError
from greenroom.process import ProcessError, dry_run

HELP = {
    "project": "the directory of pyproject.toml and uv.lock",
    "manifest": "path of the manifest in the project; else [tool.greenroom] manifest",
    "stage": "a stage that the manifest knows, or all",
    "skip": "an extra to leave out; may be repeated. SKIP_<EXTRA>_BUILD=1 means the same",
    "tag": "the image's tag; else [tool.greenroom] tag, else the project's name",
    "base-image": "bootstrap:trixie (a Debian base made from packages) or any reference",
    "no-cache": "run every build step again",
    "bytecode": "leave out compiled sources: a smaller image whose imports are slower",
    "timings": "write where time and bytes went to build/timings.json and build/timings.html",
    "check-reproducible": "build a second time without any cache, and compare every layer's digest",
    "smoke": "after the verification, create every registered environment in a container and ask each something",
    "accept": "make what is locked now the reviewed closures",
    "format": "json (a list) or github (for strategy.matrix)",
    "variant": "only this variant",
}


def command(**options: Any) -> Callable[[Callable[..., None]], Task[Any]]:
    """Make a task whose failures exit with their documented code and which honours `--dry`."""
    words = options.pop("words", [])
    options["help"] = {word: HELP[word] for word in words} | options.pop("help", {})

    def wrap(function: Callable[..., None]) -> Task[Any]:
        @functools.wraps(function)
        def body(context: Context, *args: Any, **kwargs: Any) -> None:
            try:
                with dry_run() if context.config.run.dry else nullcontext():
                    function(context, *args, **kwargs)
            except GreenroomError as error:
                raise _exit(error) from error
            except BrokenPipeError as error:
                # The reader of our output has gone; what is left to print has nowhere to go.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise Exit(code=1) from error
            except Exception as error:
                # An engine that stops answering half-way, a disk that is full, a file that is not ours; else a defect.
                of_engine = isinstance(error, ProcessError) or type(error).__module__.startswith(
                    ("docker.", "requests.")
                )
                if not of_engine and not isinstance(error, OSError):
                    raise
                kind = EngineError if of_engine else UsageError
                step = "correct it, or run it again with --debug to see where it is"
                raise _exit(kind(str(error), next_step=step)) from error
            except KeyboardInterrupt as error:
                raise Exit("greenroom: interrupted; run the same command again to go on", 130) from error

        made: Task[Any] = task(**options)(body)
        return made

    return wrap


def _exit(error: GreenroomError) -> Exit:
    """Return how invoke ends for a failure; with `--debug` the traceback is shown first."""
    if logging.getLogger("invoke").isEnabledFor(logging.DEBUG):
        traceback.print_exc()
    return Exit(f"greenroom: {error.one_line()}", error.exit_code)
