"""`run()`: the one way this project starts a subprocess.

- The child reads nothing from our standard input (a child that does would eat a caller's rows).
- Every wait is bounded; on a time-out or an interrupt the child's whole process group is ended.
- A failure carries the command, its exit code and its last lines.
- `changes=True` marks a command that changes something outside this process. Under `dry_run()` such
  a command is printed instead of run, so what a dry run shows is what a real run does.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import IO

DEFAULT_TIMEOUT = 600.0
"""Seconds that a command may take when the caller says nothing."""
PIPE_PATIENCE = 5.0
"""Seconds to wait for the rest of each stream of a command that has ended."""

_DRY_RUN: ContextVar[bool] = ContextVar("greenroom_dry_run", default=False)


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A command that ended.

    Attributes:
        argv: the command.
        returncode: its exit code; negative for a signal.
        stdout: what it wrote, decoded as UTF-8.
        stderr: likewise; empty when `on_stderr` consumed it.
    """

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str

    def last_lines(self, count: int = 10) -> str:
        """Return the last `count` non-empty lines of stderr, or of stdout if stderr is empty."""
        lines = [line for line in (self.stderr or self.stdout).splitlines() if line.strip()]
        return "\n".join(lines[-count:])


class ProcessError(Exception):
    """A command ended with an unexpected code, did not end in time, or could not be started.

    Args:
        completed: the command with its code and output.
        reason: one phrase, such as "exit code 2" or "no end within 30 s".
    """

    def __init__(self, completed: Completed, reason: str) -> None:
        self.completed = completed
        self.reason = reason
        super().__init__(f"{shlex.join(completed.argv)}: {reason}\n{completed.last_lines()}".rstrip())


def is_dry_run() -> bool:
    """Return whether commands that change something are printed instead of run."""
    return _DRY_RUN.get()


@contextlib.contextmanager
def dry_run() -> Iterator[None]:
    """Within this context, print commands marked `changes=True` instead of running them."""
    token = _DRY_RUN.set(True)
    try:
        yield
    finally:
        _DRY_RUN.reset(token)


def run(
    argv: Sequence[str | os.PathLike[str]],
    *,
    changes: bool = False,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    timeout: float = DEFAULT_TIMEOUT,
    check: bool = True,
    on_stderr: Callable[[bytes], None] | None = None,
) -> Completed:
    """Run a command to its end.

    Args:
        argv: the command and its arguments; no shell is involved.
        changes: whether the command changes anything outside this process (see `dry_run`).
        cwd: its working directory.
        env: its whole environment; ours when None.
        stdin: bytes for its standard input; none by default.
        timeout: seconds until it is ended.
        check: raise on an exit code other than 0.
        on_stderr: called with each chunk of stderr as it arrives, from another thread.

    Returns:
        The ended command.

    Raises:
        ProcessError: it failed (with `check`), did not end in time, or could not be started.
    """
    args = tuple(os.fspath(arg) for arg in argv)
    if changes and is_dry_run():
        print(shlex.join(args))
        return Completed(argv=args, returncode=0, stdout="", stderr="")
    try:
        child = subprocess.Popen(
            args,
            cwd=cwd,
            env=None if env is None else dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        completed = Completed(argv=args, returncode=127, stdout="", stderr=str(error))
        raise ProcessError(completed, "cannot be started") from error
    assert child.stdin and child.stdout and child.stderr
    out: list[bytes] = []
    err: list[bytes] = []
    threads = [
        threading.Thread(target=_feed, args=(child.stdin, stdin), daemon=True),
        threading.Thread(target=_drain, args=(child.stdout, out.append), daemon=True),
        threading.Thread(target=_drain, args=(child.stderr, on_stderr or err.append), daemon=True),
    ]
    for thread in threads:
        thread.start()
    # A thread that waits costs nothing; Popen.wait(timeout) would poll, up to 50 ms late each time. It tells the end by
    # an event, because a thread whose join() was interrupted counts as ended (before Python 3.13).
    ended = threading.Event()
    threading.Thread(target=_await, args=(child, ended), daemon=True).start()
    try:
        timed_out = not ended.wait(timeout)
    finally:
        if not ended.is_set():
            end_process_group(child)
    for thread in threads:
        # A grandchild may keep the pipes open after the child has ended: its output is not awaited.
        thread.join(PIPE_PATIENCE)
    completed = Completed(
        argv=args,
        returncode=child.returncode,
        stdout=b"".join(out).decode(errors="replace"),
        stderr=b"".join(err).decode(errors="replace"),
    )
    if timed_out:
        raise ProcessError(completed, f"no end within {timeout:.0f} s")
    if check and child.returncode != 0:
        raise ProcessError(completed, f"exit code {child.returncode}")
    return completed


def end_process_group(child: subprocess.Popen[bytes], grace: float = 10.0) -> None:
    """End a child that leads its own process group, and the group: SIGTERM, then SIGKILL for what is left.

    Args:
        child: the leader.
        grace: seconds that it may take after SIGTERM. Others of the group that outlive it are killed at once.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace)
    if child.returncode is None:
        print(f"greenroom: process {child.pid} does not end", file=sys.stderr)


def end_abandoned(words: Collection[str], grace: float = 10.0) -> None:
    """End what a killed command has left running: SIGTERM, then SIGKILL after `grace` seconds.

    Args:
        words: each is a part of the command line of what is ended; so is no other process's.
        grace: seconds for each signal.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        told: set[int] = set()
        deadline = time.monotonic() + grace
        while (pids := _processes_with(words)) and time.monotonic() < deadline:
            for pid in pids - told:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            told |= pids
            time.sleep(0.05)


def _processes_with(words: Collection[str]) -> set[int]:
    """Return our user's processes with all of these words in their command lines. Ended ones have none (proc(5))."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        # It may have ended by now.
        with contextlib.suppress(OSError):
            line = os.fsdecode((process / "cmdline").read_bytes())
            if all(word in line for word in words) and process.stat().st_uid == os.geteuid():
                found.add(int(process.name))
    return found - {os.getpid()}


def _await(child: subprocess.Popen[bytes], ended: threading.Event) -> None:
    child.wait()
    ended.set()


def _feed(pipe: IO[bytes], data: bytes) -> None:
    # A child may end before it has read everything; its exit code tells what matters.
    with contextlib.suppress(BrokenPipeError):
        pipe.write(data)
    with contextlib.suppress(BrokenPipeError):
        pipe.close()


def _drain(pipe: IO[bytes], sink: Callable[[bytes], None]) -> None:
    with pipe:
        while chunk := os.read(pipe.fileno(), 65536):
            sink(chunk)
