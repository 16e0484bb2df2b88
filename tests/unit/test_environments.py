"""The environments that need the standard library only, and the interface that all share."""

from __future__ import annotations

import ast
import dataclasses
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from greenroom.environments import code_environment, interfaces, limited_run, replies, sliding_puzzle
from greenroom.environments.code_environment import CodeEnvironment, Limits, run_code, same_output
from greenroom.environments.code_jaccard_environment import CodeJaccardEnvironment, jaccard_similarity
from greenroom.environments.sliding_puzzle import SlidingPuzzleEnvironment

ENVIRONMENTS = Path(interfaces.__file__).parent
QUICK = Limits(seconds=20, memory_bytes=256 * 1024**2, output_bytes=1000)


def reply(text: str) -> list[interfaces.Message]:
    return [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}]


# --- the interface


class Echo(interfaces.ItemwiseEnvironment):
    def step_item(self, message_log: interfaces.MessageLog, metadata: interfaces.Metadata) -> interfaces.ItemReturn:
        text = replies.last_reply(message_log)
        time.sleep(metadata.get("sleep", 0))
        return interfaces.ItemReturn(observation=text, reward=1 / metadata["divisor"], terminated=False)


@pytest.mark.parametrize("threads", [1, 4])
def test_a_batch_keeps_its_order_and_isolates_each_failure(threads: int) -> None:
    environment = Echo()
    environment.parallel_items = threads
    states: list[interfaces.Metadata] = [{"divisor": 2, "sleep": 0.1}, {"divisor": 0}, {"divisor": 1}, {"divisor": 1}]

    batch = environment.step([reply("a"), reply("b"), [], reply("d")], states)

    assert batch.rewards == (0.5, 0.0, 0.0, 1.0)
    assert batch.terminateds == (False, True, True, False)
    assert [message["content"] for message in batch.observations][::3] == ["a", "d"]
    assert batch.failures[0] is None
    assert batch.failures[1] == "ZeroDivisionError: division by zero"
    assert "does not end with a reply" in str(batch.failures[2])
    assert batch.metadata[1] == states[1], "a failed item keeps its state"


def test_a_batch_of_unequal_lengths_is_refused() -> None:
    with pytest.raises(ValueError, match=r"longer|shorter"):
        Echo().step([reply("a")], [])


def test_metrics() -> None:
    batch = Echo().step([reply("a"), reply("b")], [{"divisor": 1}, {"divisor": 0}])
    same, metrics = Echo().global_post_process_and_metrics(batch)
    assert same is batch
    assert metrics == {"items": 2, "reward_mean": 0.5, "terminated_fraction": 0.5, "failure_fraction": 0.5}
    assert Echo().global_post_process_and_metrics(Echo().step([], []))[1] == {"items": 0}


def test_shutdown_may_be_called_twice() -> None:
    environment = Echo()
    environment.shutdown()
    environment.shutdown()


def test_no_environment_imports_ray_at_module_level() -> None:
    for module in ENVIRONMENTS.glob("*.py"):
        for node in ast.parse(module.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [str(node.module)]
                assert "ray" not in [name.split(".")[0] for name in names], module.name


# --- reading replies


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("print(1)", "print(1)"),
        ("so:\n```python\nprint(1)\n```\nor\n```\nprint(2)\n```\ndone", "print(2)\n"),
        ("```py\nx = '```'\n```", "x = '```'\n"),
        ("```python\nprint(1)", "```python\nprint(1)"),
    ],
)
def test_fenced_code(text: str, code: str) -> None:
    assert replies.fenced_code(text) == code


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        (r"\boxed{1}", ["1"]),
        (r"first \boxed{\frac{1}{2}}, then \boxed{\boxed{3}}", [r"\frac{1}{2}", r"\boxed{3}"]),
        (r"\boxed{\{1, 2\}}", [r"\{1, 2\}"]),
        (r"\boxed{\left\{1\right.}", [r"\left\{1\right."]),
        (r"\boxed{1", []),
        (r"boxed{1} \boxed 1", []),
    ],
)
def test_boxed_answers(text: str, answers: list[str]) -> None:
    assert replies.boxed_answers(text) == answers


@pytest.mark.parametrize(
    ("text", "inner"),
    [
        ("<action>up</action>", "up"),
        ("<action> up", "up"),
        ("<action>a</action><action>b</action>c", "b"),
        ("up", None),
    ],
)
def test_tagged(text: str, inner: str | None) -> None:
    assert replies.tagged(text, "action") == inner


# --- code


def test_code_runs_with_input_and_returns_output() -> None:
    run = run_code("print(sum(map(int, input().split())))", "1 2 3", QUICK)
    assert run.stdout == "6\n"
    assert run.problem is None


def test_code_that_does_not_end_is_ended() -> None:
    started = time.monotonic()
    run = run_code("print('before', flush=True)\nwhile True: pass", "", Limits(seconds=1))
    assert run.problem == "no end within 1 s"
    assert run.stdout == "before\n"
    assert time.monotonic() - started < 10


def test_code_that_takes_too_much_memory_fails() -> None:
    assert str(run_code("bytearray(1024**3)", "", QUICK).problem) == "exit code 1: MemoryError"


NETWORK = {
    "a connection": "import socket; socket.create_connection(('127.0.0.1', {port}), timeout=5)",
    "IPv6": "import socket; socket.socket(socket.AF_INET6)",
    "a datagram": "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))",
    "a socket of the file system": "import socket; socket.socket(socket.AF_UNIX)",
    "a library": "import urllib.request; urllib.request.urlopen('http://127.0.0.1:{port}/', timeout=5)",
    "a process of its own": "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', "
    "'import socket; socket.create_connection((\"127.0.0.1\", {port}), timeout=5)']).returncode)",
    "a thread": "import threading, socket; t = threading.Thread(target=lambda: print(socket.socket())); t.start(); t.join(); 1/0",
}


@pytest.mark.parametrize("way", sorted(NETWORK))
def test_code_has_no_network(way: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        # Room for a traceback.
        limits = dataclasses.replace(QUICK, output_bytes=20_000)
        run = run_code(NETWORK[way].format(port=server.getsockname()[1]), "", limits)
        assert run.problem is not None
        assert "exit code 1" in run.problem
        if way not in ("a process of its own", "a thread"):
            assert "Permission denied" in run.problem
        assert run.stdout == ""
        with pytest.raises(BlockingIOError):
            server.accept()


def test_code_may_use_what_is_no_network() -> None:
    code = """
import asyncio, socket
async def double(x):
    await asyncio.sleep(0)
    return x * 2
left, right = socket.socketpair()
left.send(b"x")
print(asyncio.run(double(21)), right.recv(1))
"""
    assert run_code(code, "", QUICK) == code_environment.CodeRun(stdout="42 b'x'\n", problem=None)


@pytest.mark.parametrize("call", ["os.setsid()", "os.setpgid(0, 0)"])
def test_code_cannot_leave_the_group_that_ends_with_it(call: str) -> None:
    code = f"import os\nif os.fork() == 0:\n    {call}\n    print('left', flush=True)"
    assert "left" not in run_code(code, "", dataclasses.replace(QUICK, output_bytes=20_000)).stdout


def test_code_does_not_outlive_who_keeps_its_time(tmp_path: Path) -> None:
    code = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    script = (
        "from greenroom.environments.code_environment import Limits, run_code\n"
        f"run_code({code!r}, '', Limits(seconds=300))"
    )
    keeper = subprocess.Popen([sys.executable, "-c", script])
    deadline = time.monotonic() + 30
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    keeper.kill()
    keeper.wait()
    pid = int((tmp_path / "pid").read_text())
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_code_cannot_pretend_that_limits_are_missing() -> None:
    run = run_code(f"import sys; sys.exit({limited_run.CANNOT_LIMIT})", "", QUICK)
    assert str(run.problem).startswith("exit code 125")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_code_that_writes_too_much_is_cut_off(stream: str) -> None:
    run = run_code(f"import sys\nwhile True: sys.{stream}.write('x' * 100)", "", QUICK)
    assert run.problem == "more than 1000 bytes of output"
    assert len(run.stdout) <= 1001


def test_output_of_exactly_the_limit_is_fine() -> None:
    assert run_code("print('x' * 999)", "", QUICK).problem is None


def test_code_sees_nothing_of_our_environment_or_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    run = run_code("import os\nprint(sorted(os.environ), os.listdir())", "", QUICK)
    assert run.problem is None
    assert "SECRET_TOKEN" not in run.stdout
    assert "['submission.py']" in run.stdout


def test_processes_left_behind_are_ended(tmp_path: Path) -> None:
    late = tmp_path / "late"
    child = f"import time, pathlib; time.sleep(2); pathlib.Path({str(late)!r}).touch()"
    run = run_code(f"import subprocess, sys\nprint(subprocess.Popen([sys.executable, '-c', {child!r}]).pid)", "", QUICK)
    assert run.problem is None
    pid = int(run.stdout)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and _runs(pid):
        time.sleep(0.05)
    assert not _runs(pid)
    assert not late.exists()


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # A dead process that nobody has waited for is dead.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_white_space_at_ends_does_not_matter() -> None:
    assert same_output("a  \nb\n\n", "a\nb")
    assert not same_output("a\nb", "a b")
    assert not same_output("", "a")
    assert not same_output(" a", "a")


def test_code_environment_rewards_the_share_of_passed_cases() -> None:
    cases = [{"stdin": "1", "expected": "2"}, {"stdin": "2", "expected": "4"}, {"stdin": "x", "expected": "?"}]
    replies = [
        reply("```python\nprint(int(input()) * 2)\n```"),
        reply("print(2)"),
        reply("raise SystemExit(0)"),  # success without output has passed nothing
        reply("this is (not Python"),
    ]
    batch = CodeEnvironment(limits=QUICK, parallel_items=2).step(replies, [{"cases": cases}] * 4)
    assert batch.rewards == (2 / 3, 1 / 3, 0.0, 0.0)
    assert batch.failures == (None,) * 4
    assert batch.terminateds == (True,) * 4
    assert batch.answers[0] == "print(int(input()) * 2)\n"
    assert "case 3: exit code 1: ValueError" in batch.observations[0]["content"]
    assert "case 1: wrong output" in batch.observations[2]["content"]
    assert "SyntaxError" in batch.observations[3]["content"]


def test_code_environment_without_cases_fails_that_item_only() -> None:
    batch = CodeEnvironment(limits=QUICK).step(
        [reply("print(1)")] * 3, [{}, {"cases": []}, {"cases": [{"expected": "1"}]}]
    )
    assert [failure and failure.split(":")[0] for failure in batch.failures] == ["KeyError", "ValueError", None]
    assert batch.rewards == (0.0, 0.0, 1.0)


# --- similarity


@pytest.mark.parametrize(
    ("first", "second", "similarity"),
    [
        ("a = 1", "a=1", 1.0),
        ("a b c", "b c d", 0.5),
        ("a", "b", 0.0),
        ("", "", 1.0),
        ("", "a", 0.0),
        ("x x x", "x", 1.0),
    ],
)
def test_jaccard_similarity(first: str, second: str, similarity: float) -> None:
    assert jaccard_similarity(first, second) == similarity
    assert jaccard_similarity(second, first) == similarity


def test_code_jaccard_environment() -> None:
    batch = CodeJaccardEnvironment().step(
        [reply("```\na + b\n```"), reply("a - b"), reply("a")], [{"reference": "a + b"}, {"reference": "a + b"}, {}]
    )
    assert batch.rewards == (1.0, 0.5, 0.0)
    assert batch.failures == (None, None, "KeyError: 'reference'")


# --- the puzzle

ONE_MOVE_AWAY = {"board": [[1, 2, 3], [4, 5, 6], [7, 0, 8]], "moves": 0}


def test_a_seed_gives_the_same_shuffled_board_and_never_a_solved_one() -> None:
    boards = [sliding_puzzle.shuffled_board(3, 20, seed) for seed in range(50)]
    assert boards == [sliding_puzzle.shuffled_board(3, 20, seed) for seed in range(50)]
    assert len(set(boards)) > 40
    for size, moves in [(2, 1), (2, 12), (3, 1), (4, 30)]:
        for seed in range(30):
            board = sliding_puzzle.shuffled_board(size, moves, seed)
            assert sliding_puzzle.checked_board(board) != sliding_puzzle.solved_board(size)


def test_slides_are_undone_by_their_opposites() -> None:
    board = sliding_puzzle.checked_board([[1, 2, 3], [4, 0, 5], [6, 7, 8]])
    assert sliding_puzzle.slide(board, "up") == ((1, 2, 3), (4, 7, 5), (6, 0, 8))
    for there, back in [("up", "down"), ("down", "up"), ("left", "right"), ("right", "left")]:
        moved = sliding_puzzle.slide(board, there)
        assert moved is not None
        assert moved != board
        assert sliding_puzzle.slide(moved, back) == board
    assert sliding_puzzle.slide(sliding_puzzle.solved_board(3), "up") is None
    assert sliding_puzzle.slide(board, "sideways") is None


def test_solving_move_ends_the_episode_with_reward() -> None:
    batch = SlidingPuzzleEnvironment().step([reply("<action>Left")], [ONE_MOVE_AWAY])
    assert batch.failures == (None,)
    assert batch.rewards == (1.0,)
    assert batch.terminateds == (True,)
    assert batch.observations[0]["content"] == "Solved.\n1 2 3\n4 5 6\n7 8 _"
    assert batch.metadata[0] == {"board": [[1, 2, 3], [4, 5, 6], [7, 8, 0]], "moves": 1}


def test_impossible_and_missing_moves_are_counted_and_leave_the_board() -> None:
    environment = SlidingPuzzleEnvironment(max_moves=2)
    state: interfaces.Metadata = ONE_MOVE_AWAY
    for text, ended in [("<action>up</action>", False), ("I give up", True)]:
        batch = environment.step([reply(text)], [state])
        assert "not possible" in batch.observations[0]["content"]
        assert batch.terminateds == (ended,)
        assert batch.rewards == (0.0,)
        assert batch.metadata[0] is not None
        state = batch.metadata[0]
    assert state == {"board": ONE_MOVE_AWAY["board"], "moves": 2}


@pytest.mark.parametrize("board", [[[1, 2], [3, 3]], [[1, 2, 3], [0]], [[0]], [[1, 2], [3, 4]]])
def test_a_broken_board_fails_its_item(board: list[list[int]]) -> None:
    batch = SlidingPuzzleEnvironment().step([reply("<action>up")], [{"board": board, "moves": 0}])
    assert "holds each number once" in str(batch.failures[0])


def test_a_whole_episode_is_played_back_to_the_solution() -> None:
    environment = SlidingPuzzleEnvironment(size=2, shuffle_moves=3)
    message, state = environment.new_episode(seed=5)
    assert "_" in message["content"]
    way = _solution(sliding_puzzle.checked_board(state["board"]))
    for direction in way:
        batch = environment.step([reply(f"<action>{direction}</action>")], [state])
        assert batch.metadata[0] is not None
        state = batch.metadata[0]
    assert way
    assert batch.rewards == (1.0,)


def _solution(start: sliding_puzzle.Board) -> list[str]:
    goal = sliding_puzzle.solved_board(len(start))
    ways: dict[sliding_puzzle.Board, list[str]] = {start: []}
    for board in (queue := [start]):
        if board == goal:
            return ways[board]
        for direction in ("up", "down", "left", "right"):
            moved = sliding_puzzle.slide(board, direction)
            if moved is not None and moved not in ways:
                ways[moved] = [*ways[board], direction]
                queue.append(moved)
    raise AssertionError("no solution")


def test_driver_environments_import_the_standard_library_only() -> None:
    for name in (
        "interfaces",
        "replies",
        "hosted",
        "limited_run",
        "code_environment",
        "code_jaccard_environment",
        "sliding_puzzle",
    ):
        tree = ast.parse((ENVIRONMENTS / f"{name}.py").read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                roots = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                roots = {str(node.module).split(".")[0]}
            else:
                continue
            assert roots <= sys.stdlib_module_names | {"greenroom"}, f"{name}: {roots}"


BOXES = [
    (r"\boxed{" * 20000, []),
    (r"\boxed{" * 3000 + "1" + "}" * 3000, [r"\boxed{" * 2999 + "1" + "}" * 2999]),
    (r"\boxed{a \boxed{b}", ["b"]),
    (r"\boxed{a} } \boxed{b}", ["a", "b"]),
    (r"{\boxed{a}", ["a"]),
    (r"\boxed{\{a\}} \boxed{\}", [r"\{a\}"]),
    (r"\\boxed{a}", ["a"]),
]


@pytest.mark.parametrize(("reply", "answers"), BOXES, ids=range(len(BOXES)))
def test_boxes_are_read_in_one_pass(reply: str, answers: list[str]) -> None:
    assert replies.boxed_answers(reply) == answers


FENCES = [
    ("```a\n" * 40000, "```a\n" * 40000),
    ("```py\none\n```\n```\ntwo\n```", "two\n"),
    ("```\none\n```js\ntwo\n```  \nafter", "one\n```js\ntwo\n"),
    ("```\n```", ""),
    ("```py\nopen", "```py\nopen"),
    ("text ```py\nx\n```", "text ```py\nx\n```"),
]


@pytest.mark.parametrize(("reply", "code"), FENCES, ids=range(len(FENCES)))
def test_fences_are_read_in_one_pass(reply: str, code: str) -> None:
    assert replies.fenced_code(reply) == code
