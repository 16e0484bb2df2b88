"""The registry: the table's extras become interpreters, and what cannot be right fails when it is read."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from greenroom.actor_environments import ACTOR_ENVIRONMENTS
from greenroom.distributed.ray_actor_environment_registry import (
    PY_EXECUTABLES,
    ActorEnvironmentError,
    Registry,
    declared_extras,
    get_actor_python_env,
    uv_run,
)
from greenroom.stamps import STAMP

ROOT = Path(__file__).parents[2]
MATH = "greenroom.environments.math_environment.MathEnvironment"
PREFIX = "greenroom.environments"
# Written by hand, as such registries were before there was a table: what the table must still mean.
BY_HAND = {
    f"{PREFIX}.math_environment.MathEnvironment": PY_EXECUTABLES.MATH,
    f"{PREFIX}.math_environment.MathMultiRewardEnvironment": PY_EXECUTABLES.MATH_REWARD,
    f"{PREFIX}.gymnasium_environment.GymnasiumEnvironment": PY_EXECUTABLES.GYMNASIUM,
    f"{PREFIX}.code_environment.CodeEnvironment": PY_EXECUTABLES.SYSTEM,
    f"{PREFIX}.code_jaccard_environment.CodeJaccardEnvironment": PY_EXECUTABLES.SYSTEM,
    f"{PREFIX}.sliding_puzzle.SlidingPuzzleEnvironment": PY_EXECUTABLES.SYSTEM,
    f"{PREFIX}.retriever.RetrieverEnvironment": PY_EXECUTABLES.RETRIEVER,
    f"{PREFIX}.reward_model_environment.RewardModelEnvironment": PY_EXECUTABLES.REWARD,
    f"{PREFIX}.llamacpp_environment.LlamaCppEnvironment": PY_EXECUTABLES.LLAMACPP,
}
READ = """
import json
from greenroom.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY
print(json.dumps(ACTOR_ENVIRONMENT_REGISTRY))
"""


def read_in_a_new_process(**variables: str) -> dict[str, str]:
    environment = {**os.environ, "VENV_DIR": "/nonexistent", **variables}
    done = subprocess.run([sys.executable, "-c", READ], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("flag", ["", "0", "1"])
def test_the_table_means_what_the_registry_written_by_hand_said(flag: str) -> None:
    expected = dict.fromkeys(BY_HAND, sys.executable) if flag == "1" else BY_HAND
    assert read_in_a_new_process(GREENROOM_PY_EXECUTABLES_SYSTEM=flag) == expected
    assert set(BY_HAND) == set(ACTOR_ENVIRONMENTS)


def test_the_constants_are_commands_as_ray_takes_them() -> None:
    assert sys.executable == PY_EXECUTABLES.SYSTEM
    assert f"uv run --locked --directory {ROOT}" == PY_EXECUTABLES.BASE
    assert f"uv run --locked --extra math --extra reward --directory {ROOT}" == PY_EXECUTABLES.MATH_REWARD
    assert uv_run(["a"], Path("/with space")) == "uv run --locked --extra a --directory '/with space'"
    used = {extra for extras in ACTOR_ENVIRONMENTS.values() for extra in extras or []}
    assert {extra.upper() for extra in used} <= set(vars(PY_EXECUTABLES))


def test_an_unknown_actor_raises_with_what_to_do() -> None:
    with pytest.raises(ActorEnvironmentError, match=r"no\.Such.*next: add it to ACTOR_ENVIRONMENTS"):
        get_actor_python_env("no.Such")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"a.B": ["math", "maths"]}, r"a\.B needs the extra maths, which is not declared .*declared: math, ray"),
        ({"a.B": ("math",)}, r"a\.B has \('math',\).*write a list, such as \['math'\]"),
        ({"a.B": "math"}, r"a\.B has 'math'"),
        ({"a.B": [None]}, r"a\.B has \[None\]"),
    ],
)
def test_an_entry_that_cannot_be_right_fails_at_once(table: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ActorEnvironmentError, match=said):
        Registry(table, root=ROOT, declared=["math", "ray"])


@pytest.mark.parametrize("entry", ['["maths"]', '("math",)'])
def test_such_an_entry_fails_the_import_of_the_registry(entry: str) -> None:
    code = f"""
from greenroom import actor_environments
actor_environments.ACTOR_ENVIRONMENTS["some.Actor"] = {entry}
import greenroom.distributed.ray_actor_environment_registry
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "ActorEnvironmentError: some.Actor " in done.stderr.splitlines()[-1]


def test_names_of_extras_are_compared_as_packaging_does() -> None:
    Registry({"a.B": ["My_Extra"]}, root=None, declared=["my-extra"])


def test_declared_extras_are_the_same_in_the_sources_and_in_the_metadata() -> None:
    assert declared_extras(ROOT) == declared_extras(None) == declared_extras(None, "greenroom")
    assert "math" in declared_extras(ROOT)
    assert declared_extras(None, "no-such-distribution") == frozenset()


# --- prebuilt venvs


def write_stamp(venv: Path, **changes: Any) -> None:
    """Write a finished venv whose interpreter is ours, as far as the registry looks."""
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    stamp = {
        "schema": 1,
        "set": "math",
        "extras": ["math"],
        "closure": {"six": f"1.0 sha256:{'1' * 64}", "project": "1.0"},
        "python": platform.python_version(),
        "platform": f"linux {platform.machine()} glibc 2.41",
        "uv": "0.13.9",
        "complete": True,
    } | changes
    (venv / STAMP).write_text(json.dumps({key: value for key, value in stamp.items() if value is not None}))


LOCK = """
version = 1
requires-python = ">=3.8"

[[package]]
name = "project"
version = "1.0"
source = { editable = "." }

[package.optional-dependencies]
math = [{ name = "six" }]

[package.metadata]
provides-extras = ["math"]

[[package]]
name = "six"
version = "1.0"
source = { registry = "index" }
wheels = [{ url = "x", hash = "sha256:HASH" }]
"""


def registry(tmp_path: Path, *, extras: Sequence[str] = ("math",), lock: str | None = LOCK) -> Registry:
    root = tmp_path / "root"
    root.mkdir()
    (root / "pyproject.toml").write_text('[project]\nname = "project"\nversion = "1.0"\n')
    if lock is not None:
        (root / "uv.lock").write_text(lock.replace("HASH", "1" * 64))
    return Registry(
        {MATH: list(extras)}, root=root, declared=["math", "more"], venv_dir=tmp_path / "venvs", system=False
    )


def test_a_prebuilt_venv_that_is_what_table_and_lock_say_is_used(tmp_path: Path) -> None:
    write_stamp(tmp_path / "venvs" / MATH)
    assert registry(tmp_path).py_executable(MATH) == str(tmp_path / "venvs" / MATH / "bin" / "python")


def test_a_prebuilt_venv_is_used_where_there_is_no_lock(tmp_path: Path) -> None:
    write_stamp(tmp_path / "venvs" / MATH)
    assert registry(tmp_path, lock=None).py_executable(MATH) == str(tmp_path / "venvs" / MATH / "bin" / "python")


@pytest.mark.parametrize(
    ("changes", "extras", "said"),
    [
        ({"complete": False}, ["math"], "does not say that the venv is complete"),
        ({"complete": None}, ["math"], "is no stamp"),
        ({"schema": 2}, ["math"], "does not say that the venv is complete"),
        ({"extras": ["math", "more"]}, ["math"], "built with the extras math, more, not math"),
        ({}, ["math", "more"], "built with the extras math, not math, more"),
        ({"closure": {"six": f"1.1 sha256:{'1' * 64}", "project": "1.0"}}, ["math"], "six 1.1 is built, 1.0 is locked"),
        (
            {"closure": {"six": f"1.0 sha256:{'2' * 64}", "project": "1.0"}},
            ["math"],
            "a file that is not the locked one",
        ),
        ({"closure": {"project": "1.0"}}, ["math"], "six 1.0 is locked and not built"),
        (
            {"closure": {"six": f"1.0 sha256:{'1' * 64}", "project": "1.0", "old": "3 sha256:0"}},
            ["math"],
            "old 3 is built and not locked",
        ),
        ({"python": "3.1.4"}, ["math"], "built for Python 3.1.4"),
        ({"platform": "linux m68k glibc 2.41"}, ["math"], "built for linux m68k glibc 2.41, this is "),
        (
            {"closure": {"six": f"1.0 sha256:{'1' * 64}", "project": "1.0", "ray": "1.2.3 sha256:0"}},
            ["math"],
            "holds Ray 1.2.3, the driver ",
        ),
    ],
)
def test_another_venv_is_not_used_and_the_reason_is_told(
    tmp_path: Path, changes: dict[str, Any], extras: list[str], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    write_stamp(tmp_path / "venvs" / MATH, **changes)
    made = registry(tmp_path, extras=extras)
    assert made.py_executable(MATH) == uv_run(extras, tmp_path / "root")
    assert said in caplog.text


@pytest.mark.parametrize(
    ("built", "problem"),
    [
        ("1.0 git:" + "a" * 40, None),
        ("1.0 git:" + "a" * 40 + "#part", "six 1.0 is built from another commit than the locked one"),
        ("1.0 sha256:" + "1" * 64, "six 1.0 is built from a file, and locked to another source"),
        ("1.0 mounted:/workspace/six", None),
        ("1.0", None),
        ("1.0 git:" + "b" * 40, "six 1.0 is built from another commit than the locked one"),
        ("1.1 git:" + "a" * 40, "six 1.1 is built, 1.0 is locked"),
    ],
)
def test_what_comes_from_git_is_compared_by_its_commit(tmp_path: Path, built: str, problem: str | None) -> None:
    write_stamp(tmp_path / "venvs" / MATH, closure={"six": built, "project": "1.0"})
    source = f'source = {{ git = "https://host.example/six?rev=main#{"a" * 40}" }}'
    lock = LOCK.replace('source = { registry = "index" }\nwheels = [{ url = "x", hash = "sha256:HASH" }]', source)
    assert lock != LOCK
    found = registry(tmp_path, lock=lock).prebuilt_problem(MATH)
    assert found == problem if problem is None else problem in str(found)


def test_a_venv_without_a_stamp_or_interpreter_is_not_used(tmp_path: Path) -> None:
    made = registry(tmp_path)
    assert made.py_executable(MATH) == uv_run(["math"], tmp_path / "root")
    write_stamp(tmp_path / "venvs" / MATH)
    (tmp_path / "venvs" / MATH / STAMP).rename(tmp_path / STAMP)
    assert "has no stamp" in str(made.prebuilt_problem(MATH))
    (tmp_path / STAMP).rename(tmp_path / "venvs" / MATH / STAMP)
    assert made.prebuilt_problem(MATH) is None
    (tmp_path / "venvs" / MATH / "bin" / "python").unlink()
    assert "there is no venv" in str(made.prebuilt_problem(MATH))


def test_without_venv_and_sources_an_actor_cannot_be_started(tmp_path: Path) -> None:
    made = Registry({MATH: ["math"], "a.Driver": None}, root=None, declared=["math"], venv_dir=tmp_path, system=False)
    with pytest.raises(ActorEnvironmentError, match=r"MathEnvironment cannot be started.*built without it"):
        made.py_executable(MATH)
    assert made.executables() == {"a.Driver": sys.executable}
    assert Registry({MATH: ["math"]}, root=None, declared=["math"], system=True).executables() == {MATH: sys.executable}


def test_a_lock_that_is_missing_is_replaced_by_the_reviewed_closures(tmp_path: Path) -> None:
    write_stamp(tmp_path / "venvs" / MATH)
    made = registry(tmp_path, lock=None)
    root = tmp_path / "root"
    (root / "pyproject.toml").write_text('[project]\nname = "Project"\nversion = "1.0"\n')
    (root / "closures.txt").write_text(f"# reviewed\n\n[math]\nsix 1.0 sha256:{'2' * 64}\n\n[more]\nsix 9 sha256:0\n")
    assert made.prebuilt_problem(MATH) is None
    (root / "closures.txt").write_text("[math]\nsix 1.1 sha256:0\n")
    again = Registry({MATH: ["math"]}, root=root, declared=["math"], venv_dir=tmp_path / "venvs", system=False)
    assert "six 1.0 is built, 1.1 is locked" in str(again.prebuilt_problem(MATH))


def test_another_project_has_a_registry_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "other"\n[project.optional-dependencies]\nfast = []\n')
    made = Registry.of_project({"other.Actor": ["fast"], "other.Driver": None}, root=tmp_path)
    assert made.executables() == {"other.Actor": uv_run(["fast"], tmp_path), "other.Driver": sys.executable}
    assert made.runs_in_driver("other.Driver") and not made.runs_in_driver("other.Actor")
    with pytest.raises(ActorEnvironmentError, match=r"needs the extra slow, .*declared: fast"):
        Registry.of_project({"other.Actor": ["slow"]}, root=tmp_path)
    assert Registry.of_project({MATH: ["math"]}, distribution="greenroom").table == {MATH: ["math"]}
    with pytest.raises(ActorEnvironmentError, match="give root= or distribution="):
        Registry.of_project({"other.Actor": ["fast"]})
