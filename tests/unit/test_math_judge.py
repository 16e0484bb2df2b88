"""The judge's process lasts as long as who asks it, whichever thread asked first."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from greenroom.environments import math_environment

# The real process with a comparison of its own: the library for the real one is in the actor's venv only.
PLAIN_JUDGE = """
import sys, types
sys.modules["math_verify"] = types.SimpleNamespace(parse=None, verify=None)
from greenroom.environments import math_judge
math_judge.answers_agree = lambda expected, answer: expected == answer
math_judge.main()
"""


def test_the_judge_outlives_the_thread_that_asked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain_judge.py").write_text(PLAIN_JUDGE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(math_environment, "JUDGE", "plain_judge")
    judge = math_environment.Judge()
    told: list[bool] = []
    processes: set[int] = set()
    try:
        for answer in ("1", "1", "2"):
            thread = threading.Thread(target=lambda answer=answer: told.append(judge.agree("1", answer, 20.0)))
            thread.start()
            thread.join(60)
            assert judge._child is not None
            processes.add(judge._child.pid)
        assert told == [True, True, False]
        assert len(processes) == 1
    finally:
        judge.close()
