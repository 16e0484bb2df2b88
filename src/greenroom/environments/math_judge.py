r"""Compares mathematical answers, in a process of its own: parsing and simplifying may hang in a single long call.

    python -m greenroom.environments.math_judge

Reads one JSON line `[expected, answer]` after the other and answers each with one: `{"agree": …}` or `{"error": …}`.
Whoever started it keeps the time (see `greenroom.environments.math_environment.Judge`).
"""

from __future__ import annotations

import ctypes
import json
import logging
import resource
import signal
import sys
from typing import TextIO

from math_verify import parse, verify

from greenroom.environments.replies import boxed_answers

MEMORY_BYTES = 2 * 1024**3
"""What it may use: towers of powers have more digits than any machine holds."""
READY = "ready"
_PR_SET_PDEATHSIG = 1


def answers_agree(expected: str, answer: str) -> bool:
    r"""Return whether two answers are the same mathematics, as `1/2`, `0.5` and `\frac{2}{4}` are.

    Args:
        expected: the right answer, plain or LaTeX, with or without `\boxed{}` or dollar signs.
        answer: the answer to judge, without `\boxed{}`.

    Raises:
        ValueError: the expected answer is not mathematics.
    """
    bare = (boxed_answers(expected) or [expected.strip().strip("$")])[-1]
    # No time limits of its own: they are alarm signals, which a single long call does not notice.
    gold, target = (parse(rf"\boxed{{{text}}}", parsing_timeout=None, raise_on_error=True) for text in (bare, answer))
    if not gold:
        raise ValueError(f"the expected answer {expected!r} is not mathematics")
    return bool(verify(gold, target, timeout_seconds=None, raise_on_error=True))


def serve(questions: TextIO, answers: TextIO) -> None:
    """Answer questions until there are no more."""
    for line in questions:
        try:
            expected, answer = json.loads(line)
            said: dict[str, object] = {"agree": answers_agree(expected, answer)}
        except Exception as error:
            said = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), file=answers, flush=True)


def main() -> None:
    """Say that it is ready, then serve standard input to standard output."""
    # It must not outlive whoever keeps the time.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    answers = sys.stdout
    # It warns of every comparison without a limit of its own.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    # What a library prints is no answer.
    sys.stdout = sys.stderr
    print(json.dumps(READY), file=answers, flush=True)
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
