"""The nox sessions: the same commands, with the same output and exit codes."""

from __future__ import annotations

import json
import sys

from tests.image.support import REPO, clean_environment

from greenroom.process import Completed, run


def nox(*words: str, **variables: str) -> Completed:
    command = [sys.executable, "-m", "nox", *words]
    return run(command, cwd=REPO, env=clean_environment(variables), timeout=300, check=False)


def test_the_matrix_is_one_line_of_json() -> None:
    done = nox("-s", "matrix", "--", "--format", "json")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    rows = {row["variant"]: row["skip"] for row in json.loads(line)}
    assert rows["full"] == ""


def test_a_session_ends_with_the_command_s_code() -> None:
    done = nox("-s", "plan", "--", "--skip", "matth")
    assert (done.returncode, done.stdout) == (2, "")
    assert "unknown extra to skip: matth" in done.stderr
    assert "gymnasium, llamacpp, math, retriever, reward" in done.stderr


def test_a_session_honours_the_skip_variables() -> None:
    done = nox("-s", "plan", "--", "--json", SKIP_MATH_BUILD="1")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["skip"] == ["math"]
    assert {actor["environment_set"] for actor in plan["actors"] if not actor["included"]} == {"math", "math+reward"}
