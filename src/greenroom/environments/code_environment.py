"""Running submitted Python against test cases, each run in a process of its own with limits.

- A case is standard input and expected standard output. What counts is the output: a submission that exits early
  with success has not passed anything.
- The limits stop accidents: endless loops, runaway memory, floods of output, processes left behind in the group,
  and any use of the network. They are no sandbox against malice; that is the container's job.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from greenroom.environments import limited_run
from greenroom.environments.interfaces import ItemReturn, ItemwiseEnvironment, MessageLog, Metadata
from greenroom.environments.replies import fenced_code, last_reply

_LIMITED_RUN = Path(limited_run.__file__)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one run may use.

    Attributes:
        seconds: wall-clock time; CPU time is limited to the next whole second above.
        memory_bytes: address space, the interpreter included (it needs about 50 MB).
        output_bytes: standard output, standard error, and every file that the run writes, each.
    """

    seconds: float = 5.0
    memory_bytes: int = 512 * 1024**2
    output_bytes: int = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class CodeRun:
    """A run that ended: its standard output and, when it did not end well, why."""

    stdout: str
    problem: str | None


def run_code(code: str, stdin: str, limits: Limits) -> CodeRun:
    """Run Python code to its end in an empty directory and an almost empty environment, without a network.

    Args:
        code: the program.
        stdin: its standard input.
        limits: what it may use.

    Returns:
        What it wrote to standard output, and what went wrong: no end in time, too much output, an exit code.

    Raises:
        RuntimeError: this system cannot limit it; the code has not run.
    """
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="greenroom-code-", ignore_cleanup_errors=True))
        Path(scratch, "submission.py").write_text(code, encoding="utf-8")
        # Anonymous files instead of pipes: their size can be limited, and a process left behind holds nothing open.
        source, out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        source.write(stdin.encode())
        source.seek(0)
        # One byte above the limit tells "too much" from "just enough".
        allowed = (limits.memory_bytes, limits.output_bytes + 1, int(limits.seconds) + 1)
        child = subprocess.Popen(
            [sys.executable, "-I", _LIMITED_RUN, *map(str, allowed)],
            cwd=scratch,
            # Nothing of ours: environments hold tokens.
            env={"PATH": os.defpath, "HOME": scratch, "PYTHONUTF8": "1"},
            stdin=source,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            child.wait(limits.seconds)
            problem = None
        except subprocess.TimeoutExpired:
            problem = f"no end within {limits.seconds:g} s"
        finally:
            # Also after a normal end: the submission may have left processes in its group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        written, complaints = _content(out.fileno()), _content(err.fileno())
        if child.returncode == limited_run.CANNOT_LIMIT and complaints.startswith(limited_run.COMPLAINT.encode()):
            raise RuntimeError(complaints.decode(errors="replace").strip())
        if problem is None and max(len(written), len(complaints)) > limits.output_bytes:
            problem = f"more than {limits.output_bytes} bytes of output"
        if problem is None and child.returncode != 0:
            last_line = (complaints.decode(errors="replace").strip().splitlines() or [""])[-1]
            problem = f"exit code {child.returncode}: {last_line}"
        return CodeRun(stdout=written.decode(errors="replace"), problem=problem)


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def same_output(actual: str, expected: str) -> bool:
    """Return whether two outputs are equal but for white space at the ends of lines and of the text."""
    return [line.rstrip() for line in actual.rstrip().splitlines()] == [
        line.rstrip() for line in expected.rstrip().splitlines()
    ]


class CodeEnvironment(ItemwiseEnvironment):
    """Rewards a reply with the share (0 to 1) of test cases that its code passes; one step an episode.

    The metadata's `cases` is a list of `{"stdin": …, "expected": …}`; `stdin` may be left out.

    Args:
        limits: what each run may use.
        parallel_items: how many replies run at the same time; the number of processors when None.
    """

    def __init__(self, *, limits: Limits | None = None, parallel_items: int | None = None) -> None:
        self.limits = limits or Limits()
        self.parallel_items = parallel_items or os.cpu_count() or 1

    def step_item(self, message_log: MessageLog, metadata: Metadata) -> ItemReturn:
        """Judge one reply (see `ItemwiseEnvironment.step_item`).

        Raises:
            KeyError: the metadata has no `cases`, or a case no `expected`.
            ValueError: there is no reply or no case.
        """
        cases = [(str(case.get("stdin", "")), str(case["expected"])) for case in metadata["cases"]]
        if not cases:
            raise ValueError("no test cases")
        code = fenced_code(last_reply(message_log))
        problems = []
        for number, (stdin, expected) in enumerate(cases, 1):
            run = run_code(code, stdin, self.limits)
            problem = run.problem or (None if same_output(run.stdout, expected) else "wrong output")
            if problem:
                problems.append(f"case {number}: {problem}")
        passed = len(cases) - len(problems)
        return ItemReturn(
            observation="\n".join([f"{passed} of {len(cases)} cases passed", *problems]),
            reward=passed / len(cases),
            terminated=True,
            metadata=metadata,
            answer=code,
        )
