"""buildx's report, however it is cut into chunks, gives the same steps and the same failure."""

from __future__ import annotations

import base64
import io
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from greenroom.progress import KEPT_LINES, BuildProgress, short_name

SLOT = (
    "[slots  3/19] RUN --network=none --mount=from=installer,target=/installer "
    'python3 /installer/install_slot.py /slot "$VENV_DIR" 02'
)


def vertex(digest: str, name: str, **more: object) -> dict[str, Any]:
    return {"digest": f"sha256:{digest}", "name": name, **more}


def log(digest: str, text: str | bytes) -> dict[str, Any]:
    data = text.encode() if isinstance(text, str) else text
    return {"logs": [{"vertex": f"sha256:{digest}", "stream": 1, "data": base64.b64encode(data).decode()}]}


def raw(*messages: dict[str, Any]) -> bytes:
    """Return messages as buildx writes them: Go's encoder does not escape what is not ASCII, and some are indented."""
    texts = [
        json.dumps(message, ensure_ascii=False, indent="\t" if number % 2 else None)
        for number, message in enumerate(messages)
    ]
    return "\n".join([*texts, ""]).encode()


START = "2026-11-30T12:00:00.123456789Z"
END = "2026-11-30T12:00:02.623456789Z"

REPORT = raw(
    {"vertexes": [vertex("1", "[internal] lädt → Dockerfile", started=START)]},
    {"vertexes": [vertex("1", "[internal] lädt → Dockerfile", started=START, completed=END)]},
    {"vertexes": [vertex("2", "[base 1/1] FROM greenroom-base:trixie", started=START, completed=END, cached=True)]},
    {"statuses": [{"id": "läuft", "vertex": "sha256:1", "current": 5, "total": 10}]},
    {"vertexes": [vertex("3", SLOT, started=START)]},
    log("3", "greenroom: slot 02: größe 1.0 into 3 sets, 4 files\nnot finished"),
    log("3", " → yet\n"),
    {"vertexes": [vertex("3", SLOT, started=START, completed=END)]},
    {"warnings": [], "vertexes": None},
)


def fed(*chunks: bytes) -> BuildProgress:
    progress = BuildProgress(Console(file=io.StringIO()))
    for chunk in chunks:
        progress.feed(chunk)
    return progress


def seen(progress: BuildProgress) -> object:
    steps = {
        digest: (step.name, list(step.lines), step.error, step.cached, step.seconds)
        for digest, step in progress.steps.items()
    }
    return steps, progress.failure()


def test_steps() -> None:
    progress = fed(REPORT)
    steps = list(progress.steps.values())
    assert [step.is_of_dockerfile for step in steps] == [False, True, True]
    assert [step.cached for step in steps] == [False, True, False]
    assert [step.seconds for step in steps] == [2.5, 2.5, 2.5]
    assert list(steps[2].lines) == ["greenroom: slot 02: größe 1.0 into 3 sets, 4 files", "not finished → yet"]
    assert progress.cached_steps == 1
    assert progress.failure() == ""


def test_the_same_in_single_bytes_and_in_two_parts_at_every_place() -> None:
    whole = seen(fed(REPORT))
    assert seen(fed(*[REPORT[place : place + 1] for place in range(len(REPORT))])) == whole
    for place in range(len(REPORT)):
        assert seen(fed(REPORT[:place], REPORT[place:])) == whole, REPORT[place - 10 : place + 10]


@given(places=st.lists(st.integers(0, len(REPORT)), max_size=12))
def test_the_same_in_any_parts(places: list[int]) -> None:
    cuts = [0, *sorted(places), len(REPORT)]
    parts = [REPORT[begin:end] for begin, end in itertools.pairwise(cuts)]
    assert seen(fed(*parts)) == seen(fed(REPORT))


@pytest.mark.parametrize("place", range(len("größe →\n".encode())))
def test_a_character_that_is_cut_by_two_logs_is_whole(place: int) -> None:
    data = "größe →\n".encode()
    progress = fed(raw({"vertexes": [vertex("1", SLOT)]}, log("1", data[:place]), log("1", data[place:])))
    assert list(progress.steps["sha256:1"].lines) == ["größe →"]


FAILED = vertex("1", SLOT, started=START, completed=END, error="process did not complete successfully: exit code: 1")

FAILURES = {
    "our own line is chosen": (
        "Traceback\ngreenroom: slot 02: starts\ngreenroom: slot 02: wheel is broken\nnoise\n",
        "slot 02: wheel is broken",
    ),
    "a last line without its end counts": ("noise\ngreenroom: slot 02: no space left", "slot 02: no space left"),
    "else its last ten lines": (
        "\n".join(f"line {number}" for number in range(30)) + "\n",
        " / ".join(f"line {number}" for number in range(20, 30)),
    ),
    "blank lines are left out": ("one\n\n  \ntwo\n", "one / two"),
    "else the builder's words": ("", "process did not complete successfully: exit code: 1"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_the_failed_step_and_what_it_said(case: str) -> None:
    output, said = FAILURES[case]
    messages = [{"vertexes": [vertex("1", SLOT, started=START)]}, log("1", output), {"vertexes": [FAILED]}]
    progress = fed(raw(*messages))
    assert (
        progress.failure() == f'step [slots 3/19] RUN python3 /installer/install_slot.py /slot "$VENV_DIR" 02: {said}'
    )


def test_a_step_that_was_canceled_by_the_failure_of_another_is_not_what_failed() -> None:
    canceled = vertex(
        "0", "[wheels-0 2/2] RUN fetch", started=START, error="process did not complete: context canceled"
    )
    progress = fed(raw({"vertexes": [canceled]}, {"vertexes": [FAILED]}, log("1", "greenroom: no such file\n")))
    assert progress.failure().endswith(" 02: no such file")
    assert fed(raw({"vertexes": [canceled]})).failure().startswith("step [wheels-0 2/2] RUN fetch: ")


def test_text_that_is_no_report_is_kept_for_the_failure() -> None:
    text = b"ERROR: failed to solve: base:1: not found\nand more"
    assert fed(text).failure() == "ERROR: failed to solve: base:1: not found / and more"
    assert fed(REPORT, text).failure() == "ERROR: failed to solve: base:1: not found / and more"
    assert fed(b"WARNING: x\n", REPORT).failure() == "WARNING: x"
    assert list(fed(b"WARNING: x\n", REPORT).steps) == list(fed(REPORT).steps)


def test_only_the_last_lines_are_kept() -> None:
    output = "".join(f"line {number}\n" for number in range(1000))
    progress = fed(raw({"vertexes": [vertex("1", SLOT)]}, log("1", output)))
    assert len(progress.steps["sha256:1"].lines) == KEPT_LINES


def test_plain_lines_are_one_for_each_step_that_ran_and_none_for_frequent_ones() -> None:
    stream = io.StringIO()
    progress = BuildProgress(Console(file=stream))
    with progress:
        progress.feed(REPORT)
        progress.feed(raw({"vertexes": [vertex("4", "[plan 2/2] RUN --mount=x plan", started=START, completed=END)]}))
        progress.feed(raw(log("3", "greenroom: venv 1 of 2: a.B (one)\n")))
    lines = [line.split(" s  ", 1)[1] for line in stream.getvalue().splitlines()]
    assert lines == [
        "[plan 2/2] RUN plan (2.5 s)",
        "venv 1 of 2: a.B (one)",
    ]
    assert "\x1b" not in stream.getvalue()


def test_a_live_line_on_a_terminal_leaves_no_lines() -> None:
    stream = io.StringIO()
    with BuildProgress(Console(file=stream, force_terminal=True, width=100)) as progress:
        progress.feed(REPORT)
    assert "(2.5 s)" in stream.getvalue()
    assert "greenroom: " not in stream.getvalue()
    assert stream.getvalue().endswith("\x1b[2K")


@pytest.mark.parametrize("in_ci", [True, False])
def test_lines_are_folded_in_a_ci(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], in_ci: bool
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true" if in_ci else "")
    with BuildProgress(Console(file=io.StringIO())):
        pass
    assert capsys.readouterr().err == ("::group::image build\n::endgroup::\n" if in_ci else "")


def test_short_names() -> None:
    assert short_name(SLOT) == '[slots 3/19] RUN python3 /installer/install_slot.py /slot "$VENV_DIR" 02'
    assert len(short_name("x" * 500)) == 90
