"""A venv on one node: made once, found again by its key, never half-made, never changed. Real uv, no cluster."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster.support import (
    REAL_UV,
    command,
    finished,
    first_in_path,
    left_behind,
    other_uv,
    small_disk,
    write_locked_project,
)

from greenroom.distributed.local_venvs import VenvError, create_local_venv, describe_venv, parse_uv_run
from greenroom.lock import uv_lock
from greenroom.stamps import STAMP

MAKE = "import sys; from greenroom.distributed.local_venvs import create_local_venv as c; print(c(*sys.argv[1:3], timeout=float(sys.argv[3])))"


def start(project: Path, *, timeout: float = 120, **variables: str) -> subprocess.Popen[str]:
    """Make the venv of the extra left in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", MAKE, command(project, "left"), "Left", str(timeout)],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def slow_uv(directory: Path) -> Path:
    """Write a uv whose sync takes very long; return its directory."""
    return other_uv(directory / "slow", f'case "$1" in sync) echo $$ > {directory}/uv.pid; sleep 600;; esac')


def end_slow_uv(directory: Path) -> None:
    """End it: it leads a process group of its own, which outlives a builder that is killed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(int((directory / "uv.pid").read_text()), signal.SIGKILL)


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_it_holds_what_the_lock_says_and_runs(project: Path, venv_dir: Path) -> None:
    python = Path(create_local_venv(command(project, "left"), "Left"))
    (venv,) = finished(venv_dir)
    assert python == venv / "bin" / "python"
    assert venv.name.startswith("Left-")
    told = subprocess.run(
        [python, "-c", "import six, sys; print(six.__file__, sys.prefix)"], capture_output=True, text=True
    )
    assert told.stdout.split() == [str(next(venv.glob("lib/python*/site-packages/six.py"))), str(venv)]
    assert describe_venv(str(python))["installed"] == {"six": "1.17.0"}
    stamp = json.loads((venv / STAMP).read_text())
    assert (stamp["extras"], stamp["complete"]) == (["left"], True)
    assert left_behind(venv_dir) == []


def test_it_is_made_once(project: Path, venv_dir: Path) -> None:
    first = create_local_venv(command(project, "left"), "Left")
    before = Path(first).parents[1].stat(), (Path(first).parents[1] / STAMP).read_bytes()
    assert create_local_venv(command(project, "left"), "Left") == first
    assert (Path(first).parents[1].stat().st_ino, (Path(first).parents[1] / STAMP).read_bytes()) == (
        before[0].st_ino,
        before[1],
    )


def test_another_key_is_another_venv_and_leaves_the_first_alone(project: Path, venv_dir: Path, tmp_path: Path) -> None:
    first = create_local_venv(command(project, "left"), "Left")
    other_extras = create_local_venv(command(project, "right"), "Left")
    bumped = write_locked_project(tmp_path / "bumped", left="six==1.16.0")
    other_lock = create_local_venv(command(bumped, "left"), "Left")
    assert len({first, other_extras, other_lock}) == len(finished(venv_dir)) == 3
    assert describe_venv(first)["installed"] == {"six": "1.17.0"}
    assert describe_venv(other_lock)["installed"] == {"six": "1.16.0"}
    # What the other extra locks to has not changed, so neither has its venv.
    assert create_local_venv(command(bumped, "right"), "Left") == other_extras


@pytest.mark.parametrize(
    "damage", ["no stamp", "stamp of another lock", "half a stamp", "no interpreter", "not complete"]
)
def test_what_is_not_finished_is_made_again(project: Path, venv_dir: Path, damage: str) -> None:
    python = Path(create_local_venv(command(project, "left"), "Left"))
    venv = python.parents[1]
    path = venv / STAMP
    stamp = json.loads(path.read_text())
    if damage == "no stamp":
        path.unlink()
    elif damage == "no interpreter":
        python.unlink()
    elif damage == "half a stamp":
        path.write_text(path.read_text()[:40])
    else:
        changed = {"complete": False} if damage == "not complete" else {"closure": {"six": "1.16.0 0"}}
        path.write_text(json.dumps(stamp | changed))
    (venv / "trace").touch()
    assert create_local_venv(command(project, "left"), "Left") == str(python)
    assert not (venv / "trace").exists()
    assert json.loads(path.read_text()) == stamp
    assert describe_venv(str(python))["installed"] == {"six": "1.17.0"}


def test_of_many_processes_one_builds_and_the_others_wait(project: Path, venv_dir: Path, tmp_path: Path) -> None:
    counted = other_uv(tmp_path / "counting", f'case "$1" in sync) echo sync >> {tmp_path}/syncs; sleep 1;; esac')
    children = [start(project, PATH=first_in_path(counted)) for _ in range(4)]
    told = [child.communicate(timeout=120) for child in children]
    assert [child.returncode for child in children] == [0] * 4, told
    assert len({out for out, _ in told}) == 1
    assert (tmp_path / "syncs").read_text() == "sync\n"


def test_a_killed_builder_is_followed_by_the_next(project: Path, venv_dir: Path, tmp_path: Path) -> None:
    slow = slow_uv(tmp_path)
    builder = start(project, PATH=first_in_path(slow))
    wait_for(lambda: list(venv_dir.glob(".*.aside-*/venv/bin/python")))
    waiter = start(project)
    time.sleep(1)
    assert waiter.poll() is None
    builder.send_signal(signal.SIGKILL)
    out, err = waiter.communicate(timeout=60)
    assert waiter.returncode == 0, err
    builder.communicate()
    assert describe_venv(out.strip())["installed"] == {"six": "1.17.0"}
    assert len(finished(venv_dir)) == 1 and left_behind(venv_dir) == []
    end_slow_uv(tmp_path)


def test_a_waiter_gives_up_and_says_whom_it_waited_for(project: Path, venv_dir: Path, tmp_path: Path) -> None:
    slow = slow_uv(tmp_path)
    builder = start(project, PATH=first_in_path(slow))
    wait_for(lambda: list(venv_dir.glob(".*.aside-*/venv/bin/python")))
    began = time.monotonic()
    with pytest.raises(VenvError, match=rf"is not finished after 1 s of waiting.*process {builder.pid} on "):
        create_local_venv(command(project, "left"), "Left", timeout=1)
    assert time.monotonic() - began < 10
    builder.send_signal(signal.SIGTERM)
    builder.communicate(timeout=30)
    end_slow_uv(tmp_path)


def test_a_uv_that_hangs_is_ended_in_time(
    project: Path, venv_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", first_in_path(other_uv(tmp_path / "hung", 'case "$1" in sync) sleep 600;; esac')))
    began = time.monotonic()
    with pytest.raises(VenvError, match=r"uv sync for Left-\w+: no end within \d s.*next: "):
        create_local_venv(command(project, "left"), "Left", timeout=3)
    assert time.monotonic() - began < 30
    assert finished(venv_dir) == [] and left_behind(venv_dir) == []


def test_a_full_disk_leaves_nothing(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_disk(tmp_path / "disk") as disk:
        monkeypatch.setenv("GREENROOM_LOCAL_VENV_DIR", str(disk))
        with pytest.raises(VenvError, match="No space left on device"):
            create_local_venv(command(project, "left"), "Left")
        assert finished(disk) == [] and left_behind(disk) == []


def test_a_uv_that_makes_something_else_is_refused(
    project: Path, venv_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgetful = other_uv(tmp_path / "forgetful", 'case "$1" in sync) exit 0;; esac')
    monkeypatch.setenv("PATH", first_in_path(forgetful))
    with pytest.raises(VenvError, match=r"missing six 1\.17\.0; unexpected nothing"):
        create_local_venv(command(project, "left"), "Left")
    assert finished(venv_dir) == [] and left_behind(venv_dir) == []


def test_a_lock_that_is_stale_is_refused(venv_dir: Path, tmp_path: Path) -> None:
    project = write_locked_project(tmp_path / "stale")
    settings = project / "pyproject.toml"
    settings.write_text(settings.read_text().replace("six==1.17.0", "six==1.16.0"))
    with pytest.raises(VenvError, match="uv sync"):
        create_local_venv(command(project, "left"), "Left")
    assert finished(venv_dir) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "python",
        "uv run python",
        "uv run --directory /x",
        "uv run --locked --extra a",
        "uv sync --locked --directory /x",
        "uv run --locked --directory /x --with six",
    ],
)
def test_only_the_registrys_commands_are_understood(text: str) -> None:
    with pytest.raises(VenvError, match="next: take it from get_actor_python_env"):
        parse_uv_run(text)


def test_what_the_caller_runs_in_does_not_leak_into_the_venv(
    project: Path, venv_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "other"))
    monkeypatch.setenv("UV_PROJECT_ENVIRONMENT", str(tmp_path / "another"))
    create_local_venv(command(project, "left"), "Left")
    assert not (tmp_path / "other").exists() and not (tmp_path / "another").exists()


def write_package(directory: Path, text: str) -> Path:
    """Write and lock a project that is a package; its module holds a text."""
    (directory / "src" / "named").mkdir(parents=True)
    (directory / "src" / "named" / "__init__.py").write_text(f"TEXT = {text!r}\n")
    (directory / "pyproject.toml").write_text(
        """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "named"
version = "1.0"
requires-python = ">=3.11"
[project.optional-dependencies]
left = ["six==1.17.0"]
[dependency-groups]
dev = ["idna==3.10"]
[tool.uv]
exclude-newer = "2026-11-25T00:00:00Z"
"""
    )
    uv_lock(REAL_UV, directory)
    return directory


def test_two_checkouts_of_one_package_have_a_venv_each(venv_dir: Path, tmp_path: Path) -> None:
    texts = {}
    for name in ("first", "second"):
        python = create_local_venv(command(write_package(tmp_path / name, name), "left"), "Left")
        told = subprocess.run([python, "-c", "import named; print(named.TEXT)"], capture_output=True, text=True)
        texts[name] = told.stdout.strip()
        # Default dependency groups are in it, as in what uv sync makes.
        assert set(describe_venv(python)["installed"]) == {"named", "six", "idna"}
    assert texts == {"first": "first", "second": "second"}
    assert len(finished(venv_dir)) == 2


def test_a_project_that_asks_for_another_python_does_not_get_it_under_this_one_s_name(
    venv_dir: Path, tmp_path: Path
) -> None:
    project = write_locked_project(tmp_path / "choosy")
    other = "3.12" if sys.version_info[:2] != (3, 12) else "3.13"
    (project / ".python-version").write_text(f"{other}\n")
    python = create_local_venv(command(project, "left"), "Left")
    told = subprocess.run(
        [python, "-c", "import platform; print(platform.python_version())"], capture_output=True, text=True
    )
    assert told.stdout.strip() == platform.python_version()
