"""The manifest as data (it agrees with the code and with pyproject.toml) and as a script (its command line)."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from greenroom import actor_environments as manifest

REPOSITORY = Path(__file__).parents[2]
MANIFEST = Path(manifest.__file__)
BENCH = REPOSITORY / "bench" / "post-training"

NOT_FOR_ACTORS = {"ray", "pipeline"}
"""Extras of pyproject.toml that no actor names: what the others build on, and the host side."""

KNOWN_ANSWERS = {
    # Arguments: (virtual environments, distinct sets of extras) of the post-training workload.
    "": (20, 11),
    "all": (20, 11),
    "deps": (19, 10),
    "trtllm": (1, 1),
    "all vllm": (13, 8),
    "all nemo_gym": (16, 9),
    "all Nemo-.Gym": (16, 9),
    "all vllm sglang trtllm": (11, 6),
    "all trtllm trtllm": (19, 10),
    "trtllm trtllm": (0, 0),
}


def interpreters() -> list[str]:
    """Return this interpreter and every other CPython 3.8 to 3.14 on PATH or in pyenv, one a version."""
    found = {f"3.{sys.version_info.minor}": sys.executable}
    for minor in range(8, 15):
        pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"3.{minor}.*/bin/python"))
        for candidate in [*map(str, pyenv), shutil.which(f"python3.{minor}")]:
            # A name on PATH may be a shim for a version that is not installed: only one that runs counts.
            if candidate and _answers(candidate, f"3.{minor}"):
                found.setdefault(f"3.{minor}", candidate)
                break
    return list(found.values())


def _answers(python: str, version: str) -> bool:
    asked = subprocess.run(
        [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return asked.returncode == 0 and asked.stdout.strip() == version


def run_script(
    script: Path, *arguments: str, python: str = sys.executable, isolated: bool = True
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, *(["-I"] if isolated else []), script.name, *arguments],
        cwd=script.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def rows(script: Path, *arguments: str) -> list[list[str]]:
    result = run_script(script, *arguments)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "" or result.stdout.endswith("\n")
    return [line.split("\t") for line in result.stdout.splitlines()]


def copied(script: Path, directory: Path) -> Path:
    copy = directory / script.name
    copy.write_bytes(script.read_bytes())
    return copy


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """A copy of the manifest in a directory that holds nothing else."""
    return copied(MANIFEST, tmp_path)


def variant(directory: Path, table: str, stages: str = "{}") -> Path:
    """Write a copy of the manifest with another table of actors and of source-built stages."""
    text = MANIFEST.read_text(encoding="utf-8")
    for name, value in (("ACTOR_ENVIRONMENTS", table), ("SOURCE_BUILT_STAGES", stages)):
        text, count = re.subn(rf"^({name}: .*?) = \{{.*?\}}$", rf"\1 = {value}", text, flags=re.M | re.S)
        assert count == 1
    script = directory / "actor_environments.py"
    script.write_text(text, encoding="utf-8")
    return script


# --- the data


@pytest.mark.parametrize("script", [MANIFEST, BENCH / "actor_environments.py"], ids=["own", "bench"])
def test_imports_the_standard_library_only(script: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(str(node.module).split(".")[0])
    assert imported <= sys.stdlib_module_names


@pytest.mark.parametrize("script", [MANIFEST, BENCH / "actor_environments.py"], ids=["own", "bench"])
def test_no_actor_is_declared_twice(script: Path) -> None:
    # A dict literal silently keeps the last of two equal keys.
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Dict):
            keys = [ast.literal_eval(key) for key in node.keys if key]
            assert len(keys) == len(set(keys))


@pytest.mark.parametrize("actor", manifest.ACTOR_ENVIRONMENTS)
def test_every_actor_is_a_class_of_this_project(actor: str) -> None:
    module, _, name = actor.rpartition(".")
    source = REPOSITORY.joinpath("src", *module.split(".")).with_suffix(".py")
    tree = ast.parse(source.read_text(encoding="utf-8"))
    assert name in [node.name for node in tree.body if isinstance(node, ast.ClassDef)]


def test_class_names_are_unique() -> None:
    # They name the python-<ClassName> commands.
    names = [actor.rpartition(".")[2] for actor in manifest.ACTOR_ENVIRONMENTS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("script", "pyproject", "not_for_actors"),
    [
        (MANIFEST, REPOSITORY / "pyproject.toml", NOT_FOR_ACTORS),
        (BENCH / "actor_environments.py", BENCH / "pyproject.toml", set()),
    ],
    ids=["own", "bench"],
)
def test_actors_use_exactly_the_declared_extras(script: Path, pyproject: Path, not_for_actors: set[str]) -> None:
    declared = set(tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["optional-dependencies"])
    used = {word for row in rows(script) for word in row[2].split() if word != "--extra"}
    assert used - declared == set(), "used and not declared"
    assert declared - used == not_for_actors, "declared and not used"


# --- the command line


def test_rows_equal_the_table(alone: Path) -> None:
    assert rows(alone) == [
        [actor, "llamacpp" if "llamacpp" in extras else "deps", " ".join(f"--extra {extra}" for extra in extras)]
        for actor, extras in sorted(manifest.ACTOR_ENVIRONMENTS.items())
        if extras is not None
    ]
    assert rows(alone, "all") == rows(alone)
    assert [row for row in rows(alone) if row[1] == "deps"] == rows(alone, "deps")
    assert (len(rows(alone, "deps")), len(rows(alone, "llamacpp"))) == (5, 1)


@pytest.mark.parametrize("python", interpreters(), ids=lambda path: f"{Path(path).parents[1].name}-{Path(path).name}")
@pytest.mark.parametrize("script", [MANIFEST, BENCH / "actor_environments.py"], ids=["own", "bench"])
def test_runs_alone_under_every_interpreter(python: str, script: Path, tmp_path: Path) -> None:
    copy = copied(script, tmp_path)
    for arguments in ([], ["all", "matth"]):
        here, there = run_script(script, *arguments), run_script(copy, *arguments, python=python, isolated=False)
        assert (there.returncode, there.stdout, there.stderr) == (here.returncode, here.stdout, here.stderr)
    assert list(tmp_path.iterdir()) == [copy], "it leaves nothing behind"


@pytest.mark.parametrize(
    ("arguments", "word", "known"),
    [
        (["dep"], "dep", ["all", "deps", "llamacpp"]),
        (["math"], "math", ["all", "deps", "llamacpp"]),
        ([""], "", ["all", "deps", "llamacpp"]),
        (["--help"], "--help", ["all", "deps", "llamacpp"]),
        (["all", "matth"], "matth", ["gymnasium", "llamacpp", "math", "retriever", "reward"]),
        (["all", "mat"], "mat", ["gymnasium", "llamacpp", "math", "retriever", "reward"]),
        (["all", "math", "code"], "code", ["gymnasium", "llamacpp", "math", "retriever", "reward"]),
        (["all", "pipeline"], "pipeline", ["gymnasium", "llamacpp", "math", "retriever", "reward"]),
        (["all", ""], "", ["gymnasium", "llamacpp", "math", "retriever", "reward"]),
        (["all", "math reward"], "math reward", ["gymnasium", "llamacpp", "math", "retriever", "reward"]),
    ],
)
def test_an_unknown_word_is_an_error_and_prints_no_row(
    alone: Path, arguments: list[str], word: str, known: list[str]
) -> None:
    result = run_script(alone, *arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert repr(word) in result.stderr
    assert result.stderr.rstrip().endswith(": " + ", ".join(known))


def test_skipping_goes_by_declared_extra_and_not_by_name(tmp_path: Path) -> None:
    script = variant(tmp_path, '{"p.math.MathActor": ["gym"], "p.Other": ["math"], "p.mathless.M": ["math-extra"]}')
    assert [row[0] for row in rows(script, "all", "math")] == ["p.math.MathActor", "p.mathless.M"]


def test_skipping_one_of_two_extras_leaves_the_actor_out(alone: Path) -> None:
    left_out = {row[0].rpartition(".")[2] for row in rows(alone)} - {
        row[0].rpartition(".")[2] for row in rows(alone, "all", "reward")
    }
    assert left_out == {"MathMultiRewardEnvironment", "RewardModelEnvironment"}


@pytest.mark.parametrize("word", ["nemo_gym", "nemo-gym", "Nemo.Gym", "NEMO__-gym"])
def test_extras_compare_normalised(tmp_path: Path, word: str) -> None:
    script = variant(tmp_path, '{"p.A": ["Nemo_Gym"], "p.B": ["other"]}', '{"NEMO.gym": "late"}')
    assert rows(script) == [["p.A", "late", "--extra Nemo_Gym"], ["p.B", "deps", "--extra other"]]
    assert [row[0] for row in rows(script, "all", word)] == ["p.B"]


def test_extras_keep_their_declared_order(tmp_path: Path) -> None:
    script = variant(tmp_path, '{"p.Z": ["b", "a"], "p.A": ["a", "b"]}')
    assert rows(script) == [["p.A", "deps", "--extra a --extra b"], ["p.Z", "deps", "--extra b --extra a"]]


def test_an_actor_without_extras_has_an_empty_third_column(tmp_path: Path) -> None:
    script = variant(tmp_path, '{"p.A": [], "p.B": None}')
    assert run_script(script).stdout == "p.A\tdeps\t\n"


def test_an_actor_is_in_the_last_stage_that_builds_any_of_its_extras(tmp_path: Path) -> None:
    script = variant(
        tmp_path, '{"p.A": ["x"], "p.B": ["y", "x"], "p.C": ["z"]}', '{"x": "first", "y": "second", "w": "second"}'
    )
    assert [row[:2] for row in rows(script)] == [["p.A", "first"], ["p.B", "second"], ["p.C", "deps"]]
    assert [row[0] for row in rows(script, "second")] == ["p.B"]
    assert run_script(script, "third").stderr.rstrip().endswith(": all, deps, first, second")


def test_a_reader_that_goes_away_causes_no_traceback(alone: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = subprocess.run(
            [sys.executable, "-I", alone.name], cwd=alone.parent, stdin=subprocess.DEVNULL, stdout=writer,
            stderr=subprocess.PIPE, timeout=60, check=False,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert (result.returncode, result.stderr) == (1, b"")


def test_a_closed_stdout_is_a_quiet_failure(alone: Path) -> None:
    command = ["sh", "-c", 'exec "$0" -I "$1" >&-', sys.executable, alone.name]
    result = subprocess.run(
        command, cwd=alone.parent, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
    )
    assert (result.returncode, result.stderr) == (1, b"")


# --- the post-training workload


@pytest.mark.parametrize("arguments", KNOWN_ANSWERS)
def test_post_training_known_answers(arguments: str) -> None:
    selected = rows(BENCH / "actor_environments.py", *arguments.split())
    assert (len(selected), len({row[2] for row in selected})) == KNOWN_ANSWERS[arguments]


def test_post_training_refuses_a_misspelt_extra() -> None:
    result = run_script(BENCH / "actor_environments.py", "all", "matth")
    assert (result.returncode, result.stdout) == (2, "")


def test_post_training_manifest_has_the_same_command_line() -> None:
    # Each manifest stands alone, so the code is there twice: this keeps the copies equal.
    own, bench = (
        [ast.unparse(node) for node in ast.parse(path.read_text(encoding="utf-8")).body if not _is_table(node)]
        for path in (MANIFEST, BENCH / "actor_environments.py")
    )
    assert own == bench


def _is_table(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) and ast.unparse(node.target) in ("ACTOR_ENVIRONMENTS", "SOURCE_BUILT_STAGES")
