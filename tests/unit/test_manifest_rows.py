"""Reading any project's manifest through its command line, and the skip list."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from greenroom import manifest as reading
from greenroom.errors import UsageError
from greenroom.manifest import (
    Row,
    actors_of_the_driver,
    known_extras,
    normalise_skips,
    read_rows,
    skips_from_environment,
)


def script(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "actor_environments.py"
    path.write_text(body)
    return path


def printing(tmp_path: Path, output: str) -> Path:
    return script(tmp_path, f"import sys\nsys.stdout.write({output!r})\n")


RIGHT = [
    ("", []),
    ("a.B\tdeps\t--extra x\n", [("a.B", "deps", ("x",))]),
    ("a.B\tdeps\t--extra x", [("a.B", "deps", ("x",))]),
    ("a.B\tdeps\t\n", [("a.B", "deps", ())]),
    ("a.B\tdeps\t", [("a.B", "deps", ())]),
    ("a.B\tdeps\t--extra x --extra y\n", [("a.B", "deps", ("x", "y"))]),
    ("a.B\tdeps\t--extra y --extra x\n", [("a.B", "deps", ("y", "x"))]),
    ("a.B\tdeps\t--extra Nemo_.Gym\n", [("a.B", "deps", ("nemo-gym",))]),
    ("a.B\tdeps\t\na._c.D2\ttrt-llm\t--extra x\n", [("a.B", "deps", ()), ("a._c.D2", "trt-llm", ("x",))]),
    ("a.B\tdeps\t\r\n", [("a.B", "deps", ())]),
]


@pytest.mark.parametrize(("output", "rows"), RIGHT)
def test_rows(tmp_path: Path, output: str, rows: list[tuple[str, str, tuple[str, ...]]]) -> None:
    expected = tuple(Row(fqn=fqn, stage=stage, extras=extras) for fqn, stage, extras in rows)
    assert read_rows(printing(tmp_path, output)) == expected


MALFORMED = {
    "an empty line": "\n",
    "no tabs": "a.B deps --extra x\n",
    "a missing column": "a.B\tdeps\n",
    "a column too many": "a.B\tdeps\t--extra x\t\n",
    "no package": "B\tdeps\t--extra x\n",
    "an empty name": "\tdeps\t--extra x\n",
    "an empty part": "a..B\tdeps\t--extra x\n",
    "a path": "../../etc/x.B\tdeps\t--extra x\n",
    "an absolute path": "/a.B\tdeps\t--extra x\n",
    "a name with a slash": "a/b.C\tdeps\t--extra x\n",
    "a name with a blank": "a.B C\tdeps\t--extra x\n",
    "a name that starts like an option": "-a.B\tdeps\t--extra x\n",
    "a name with a digit first": "a.1B\tdeps\t--extra x\n",
    "a name that is not ASCII": "a.É\tdeps\t--extra x\n",
    "a name with a quote": "a.B'\tdeps\t--extra x\n",
    "no stage": "a.B\t\t--extra x\n",
    "a stage that is a path": "a.B\t../deps\t--extra x\n",
    "a stage like an option": "a.B\t--deps\t--extra x\n",
    "an extra without its flag": "a.B\tdeps\tx\n",
    "a flag without its extra": "a.B\tdeps\t--extra\n",
    "a last flag without its extra": "a.B\tdeps\t--extra x --extra\n",
    "a flag for two extras": "a.B\tdeps\t--extra x y\n",
    "another flag": "a.B\tdeps\t--group x\n",
    "a joined flag": "a.B\tdeps\t--extra=x\n",
    "an extra like an option": "a.B\tdeps\t--extra --all-extras\n",
    "an extra that is a path": "a.B\tdeps\t--extra ../x\n",
    "an extra with a plus, which joins set names": "a.B\tdeps\t--extra a+b\n",
    "a good row before a bad one": "a.B\tdeps\t--extra x\nWarning: something\n",
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_rows_are_refused_and_shown(tmp_path: Path, case: str) -> None:
    path = printing(tmp_path, MALFORMED[case])
    with pytest.raises(UsageError, match="printed a row that is not") as caught:
        read_rows(path)
    assert repr(MALFORMED[case].splitlines()[-1]) in caught.value.what


def test_an_actor_listed_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"lists a\.B twice"):
        read_rows(printing(tmp_path, "a.B\tdeps\t--extra x\na.C\tdeps\t\na.B\tlater\t--extra y\n"))


def test_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no manifest at"):
        read_rows(tmp_path / "actor_environments.py")


def test_the_script_gets_stage_and_skips_as_words(tmp_path: Path) -> None:
    path = script(tmp_path, "import sys\nprint('a.B', sys.argv[1], '--extra ' + '-'.join(sys.argv[2:]), sep='\\t')\n")
    assert read_rows(path, stage="later", skip=["x", "y"]) == (Row(fqn="a.B", stage="later", extras=("x-y",)),)
    assert read_rows(path, skip=["x"]) == (Row(fqn="a.B", stage="all", extras=("x",)),)


FAILING = {
    "one line and exit 2": ("import sys; print('unknown stage', file=sys.stderr); sys.exit(2)", "unknown stage"),
    "rows on stdout and exit 1": (
        "import sys; print('a.B\\tdeps\\t'); print('broken', file=sys.stderr); sys.exit(1)",
        "broken",
    ),
    "rows on stdout and exit 2 without a word": ("import sys; print('a.B\\tdeps\\t'); sys.exit(2)", "exit code 2"),
    "a traceback": ("print('a.B\\tdeps\\t')\nraise RuntimeError('no table')", "RuntimeError: no table"),
    "an import of its project": ("import no_such_project", "ModuleNotFoundError: No module named 'no_such_project'"),
    "a syntax error": ("def", "SyntaxError: invalid syntax"),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_failing_script_gives_its_own_last_line_and_no_row(tmp_path: Path, case: str) -> None:
    body, said = FAILING[case]
    with pytest.raises(UsageError) as caught:
        read_rows(script(tmp_path, body), stage="deps", skip=["x"])
    assert caught.value.exit_code == 2
    assert caught.value.what.startswith("actor_environments.py deps x: ")
    assert said in caught.value.what


def test_a_script_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_SCRIPT_TIMEOUT", 1.0)
    began = time.monotonic()
    with pytest.raises(UsageError, match="no end within 1 s"):
        read_rows(script(tmp_path, "import time\ntime.sleep(60)\n"))
    assert time.monotonic() - began < 20


def test_a_script_that_reads_its_stdin_gets_an_end(tmp_path: Path) -> None:
    path = script(tmp_path, "import sys\nassert sys.stdin.read() == ''\nprint('a.B\\tdeps\\t')\n")
    assert len(read_rows(path)) == 1


def test_known_extras_are_every_rows() -> None:
    rows = [Row(fqn="a.B", stage="s", extras=("y", "x")), Row(fqn="a.C", stage="s", extras=("x",))]
    assert known_extras(rows) == ("x", "y")
    assert known_extras([]) == ()


KNOWN = ("math", "nemo-gym", "reward")

SKIPS = [
    ([], ()),
    (["math"], ("math",)),
    (["reward", "math"], ("math", "reward")),
    (["math", "math", "MATH"], ("math",)),
    (["nemo_gym"], ("nemo-gym",)),
    (["Nemo.Gym"], ("nemo-gym",)),
    (["reward math"], ("math", "reward")),
    (["reward,math"], ("math", "reward")),
    ([" reward , math "], ("math", "reward")),
    (["", " ", ","], ()),
]


@pytest.mark.parametrize(("words", "skips"), SKIPS)
def test_skip_words(words: list[str], skips: tuple[str, ...]) -> None:
    assert normalise_skips(words, KNOWN) == skips


@pytest.mark.parametrize("word", ["mat", "maths", "math-", "Environment", "all", "--math", "math;reward"])
def test_an_unknown_skip_word_is_named_with_the_known_ones(word: str) -> None:
    with pytest.raises(UsageError, match="unknown extra to skip") as caught:
        normalise_skips(["reward", word], KNOWN)
    assert "use one of: math, nemo-gym, reward" in caught.value.next_step


ENVIRONMENTS = [
    ({}, ()),
    ({"SKIP_MATH_BUILD": "1"}, ("math",)),
    ({"SKIP_MATH_BUILD": "true"}, ("math",)),
    ({"SKIP_MATH_BUILD": "TRUE"}, ("math",)),
    ({"SKIP_MATH_BUILD": "yes", "SKIP_REWARD_BUILD": "on"}, ("math", "reward")),
    ({"SKIP_MATH_BUILD": "0"}, ()),
    ({"SKIP_MATH_BUILD": "false"}, ()),
    ({"SKIP_MATH_BUILD": "No"}, ()),
    ({"SKIP_MATH_BUILD": "off"}, ()),
    ({"SKIP_MATH_BUILD": ""}, ()),
    ({"SKIP_MATH_BUILD": "0", "SKIP_REWARD_BUILD": "1"}, ("reward",)),
    ({"SKIP_NEMO_GYM_BUILD": "1"}, ("nemo-gym",)),
    ({"SKIP_OTHER_BUILD": "0"}, ()),
    ({"SKIP_BUILD": "1", "SKIP_MATH": "1", "XSKIP_MATH_BUILD": "1", "SKIP_math_BUILD": "1"}, ()),
]


@pytest.mark.parametrize(("environ", "skips"), ENVIRONMENTS)
def test_skips_of_the_environment(environ: dict[str, str], skips: tuple[str, ...]) -> None:
    assert skips_from_environment({"PATH": "/bin", **environ}, KNOWN) == skips


@pytest.mark.parametrize("value", ["2", "garbage", "True!", "y", " 1"])
def test_a_value_that_is_neither_yes_nor_no_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match=r"SKIP_MATH_BUILD=.* is neither 1 nor 0"):
        skips_from_environment({"SKIP_MATH_BUILD": value}, KNOWN)


def test_a_variable_of_no_declared_extra_is_refused() -> None:
    with pytest.raises(UsageError, match="SKIP_MATHS_BUILD names no extra") as caught:
        skips_from_environment({"SKIP_MATHS_BUILD": "1"}, KNOWN)
    assert "math, nemo-gym, reward" in caught.value.next_step


TABLES = [
    ("ACTOR_ENVIRONMENTS = {'a.C': None, 'a.B': ['x'], 'a.A': None}", ("a.A", "a.C")),
    ("ACTOR_ENVIRONMENTS: dict = {'a.B': None}", ("a.B",)),
    ("NONE = None\nOTHER = {'a.B': None}\nACTOR_ENVIRONMENTS = {**OTHER, 'a.C': None}", ("a.C",)),
    ("ACTOR_ENVIRONMENTS = make()", ()),
    ("ACTOR_ENVIRONMENTS: dict", ()),
    ("", ()),
]


@pytest.mark.parametrize(("text", "actors"), TABLES)
def test_actors_of_the_driver_are_read_and_nothing_is_run(tmp_path: Path, text: str, actors: tuple[str, ...]) -> None:
    marker = tmp_path / "was-run"
    path = script(tmp_path, f"{text}\nopen({os.fspath(marker)!r}, 'w')\n")
    assert actors_of_the_driver(path) == actors
    assert not marker.exists()
