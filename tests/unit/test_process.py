"""`run()`: bounded, nothing inherited on stdin, no process left behind, failures that say everything."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from greenroom import process
from greenroom.process import ProcessError, dry_run, is_dry_run, run


def python(code: str, *args: str) -> list[str]:
    return [sys.executable, "-c", code, *args]


def test_output_and_code_of_a_command_that_succeeds() -> None:
    done = run(["sh", "-c", "echo out; echo err >&2"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n", "err\n")


def test_arguments_are_not_a_shells(tmp_path: Path) -> None:
    done = run(python("import sys; print(sys.argv[1:])", "$HOME", "a b", "*"), cwd=tmp_path)
    assert done.stdout == "['$HOME', 'a b', '*']\n"


def test_a_failure_carries_command_code_and_last_lines() -> None:
    script = "for i in $(seq 30); do echo line $i >&2; echo >&2; done; exit 7"
    with pytest.raises(ProcessError) as caught:
        run(["sh", "-c", script])
    completed = caught.value.completed
    assert completed.argv == ("sh", "-c", script)
    assert completed.returncode == 7
    assert caught.value.reason == "exit code 7"
    assert completed.last_lines() == "\n".join(f"line {number}" for number in range(21, 31))
    message = str(caught.value)
    assert "exit code 7" in message and message.endswith("line 30") and "line 20" not in message


def test_last_lines_are_those_of_stdout_when_stderr_is_empty() -> None:
    assert run(["sh", "-c", "echo one; echo two; exit 1"], check=False).last_lines(1) == "two"


def test_an_unchecked_failure_is_returned() -> None:
    assert run(["sh", "-c", "exit 3"], check=False).returncode == 3


def test_a_signal_is_a_negative_code() -> None:
    with pytest.raises(ProcessError, match="exit code -9"):
        run(["sh", "-c", "kill -9 $$"])


@pytest.mark.parametrize("program", ["no-such-program-here", "/", "/etc/passwd"])
def test_a_program_that_cannot_be_started(program: str) -> None:
    with pytest.raises(ProcessError, match="cannot be started") as caught:
        run([program, "word"])
    assert caught.value.completed.argv == (program, "word")
    assert caught.value.completed.returncode == 127


def test_stdin_is_not_inherited() -> None:
    outer = """
import sys
from greenroom.process import run
print(run(["cat"], timeout=20).stdout == "")
print(sys.stdin.read())
"""
    done = run([sys.executable, "-c", outer], stdin=b"the caller's rows", timeout=60)
    assert done.stdout == "True\nthe caller's rows\n"


def test_stdin_is_what_is_given_even_when_large() -> None:
    data = os.urandom(100) * 20_000
    assert run(["wc", "-c"], stdin=data).stdout.strip() == str(len(data))


def test_a_child_that_does_not_read_its_stdin_is_no_failure() -> None:
    assert run(["true"], stdin=b"x" * 2_000_000).returncode == 0


def test_large_output_of_both_streams_is_whole() -> None:
    size = 3_000_000
    done = run(python(f"import sys; sys.stdout.write('o' * {size}); sys.stderr.write('e' * {size})"))
    assert (len(done.stdout), len(done.stderr)) == (size, size)


def test_output_that_is_not_utf8_does_not_fail() -> None:
    assert run(["printf", r"a\377b"]).stdout == "a\ufffdb"


def test_stderr_streams_while_the_command_runs(tmp_path: Path) -> None:
    """The child ends only once the first chunk has been handed over."""
    seen = tmp_path / "seen"
    chunks: list[bytes] = []

    def take(chunk: bytes) -> None:
        chunks.append(chunk)
        seen.touch()

    script = f"echo first >&2; until [ -e {seen} ]; do sleep 0.02; done; echo second >&2"
    done = run(["sh", "-c", script], on_stderr=take, timeout=30)
    assert b"".join(chunks) == b"first\nsecond\n"
    assert done.stderr == ""


def test_environment_and_directory(tmp_path: Path) -> None:
    done = run(["/bin/sh", "-c", "echo $ONLY; pwd; echo ${HOME-unset}"], env={"ONLY": "this"}, cwd=tmp_path)
    assert done.stdout == f"this\n{tmp_path.resolve()}\nunset\n"


def is_alive(pid: int) -> bool:
    """Whether a process still runs; one that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_until_gone(pid: int, seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_alive(pid)


TREES = {
    "a child that would end by itself": "sleep 60 & echo $! >{pids}; wait",
    "a grandchild that ignores SIGTERM": "sh -c 'trap \"\" TERM; sleep 60 & sleep 60' & echo $! >{pids}; wait",
    "an ended parent of the group": "(sleep 60 & echo $! >{pids}); sleep 60",
}


@pytest.mark.parametrize("tree", TREES)
def test_a_time_out_ends_the_whole_process_group(tmp_path: Path, tree: str) -> None:
    pids = tmp_path / "pids"
    began = time.monotonic()
    with pytest.raises(ProcessError, match="no end within 2 s") as caught:
        run(["sh", "-c", TREES[tree].format(pids=pids) + "; echo end"], timeout=2)
    assert time.monotonic() - began < 11
    assert caught.value.completed.returncode == -signal.SIGTERM
    assert wait_until_gone(int(pids.read_text()))


def test_a_child_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    end = process.end_process_group
    monkeypatch.setattr(process, "end_process_group", lambda child: end(child, grace=0.3))
    with pytest.raises(ProcessError, match="no end within") as caught:
        run(["sh", "-c", "trap '' TERM; while :; do sleep 0.05; done"], timeout=1.5)
    assert caught.value.completed.returncode == -signal.SIGKILL


def test_an_interrupt_ends_the_process_group(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    outer = f"""
import os, signal, threading, time
from pathlib import Path
from greenroom.process import run

def interrupt():
    while not Path({str(pids)!r}).exists():
        time.sleep(0.02)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    run(["sh", "-c", "echo $$ >{pids}.aside; mv {pids}.aside {pids}; sleep 60"], timeout=50)
except KeyboardInterrupt:
    print("interrupted")
"""
    assert run([sys.executable, "-c", outer], timeout=40).stdout == "interrupted\n"
    assert wait_until_gone(int(pids.read_text()))


def test_a_grandchild_that_keeps_a_pipe_open_is_not_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "PIPE_PATIENCE", 0.5)
    pids = tmp_path / "pids"
    began = time.monotonic()
    done = run(["sh", "-c", f"echo out; sleep 60 2>/dev/null & echo $! >{pids}"], timeout=30)
    try:
        assert time.monotonic() - began < 20
        assert (done.returncode, done.stdout) == (0, "out\n")
    finally:
        os.kill(int(pids.read_text()), signal.SIGKILL)


def test_a_dry_run_prints_what_changes_something_and_runs_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "a file"
    with dry_run():
        assert is_dry_run()
        changed = run(["touch", made], changes=True)
        asked = run(["echo", "asked"])
    assert not is_dry_run()
    assert not made.exists()
    assert (changed.returncode, changed.stdout) == (0, "")
    assert asked.stdout == "asked\n"
    assert capsys.readouterr().out == f"touch '{made}'\n"
    run(["touch", made], changes=True)
    assert made.exists()


def test_a_dry_run_ends_with_its_block_when_that_fails() -> None:
    with pytest.raises(ZeroDivisionError), dry_run():
        raise ZeroDivisionError
    assert not is_dry_run()
