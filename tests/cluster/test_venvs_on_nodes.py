"""Venvs on the nodes of a real cluster: every node that takes work holds the same, or the reason is told."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cluster.support import Nodes, command, finished, first_in_path, left_behind, other_uv, small_disk

from greenroom.distributed import venvs
from greenroom.distributed.local_venvs import create_local_venv, describe_venv
from greenroom.distributed.ray_actor_environment_registry import ActorEnvironmentError
from greenroom.distributed.venvs import VenvError, create_local_venv_on_each_node, make_actor_runtime_env
from greenroom.stamps import STAMP

MATH = "greenroom.environments.math_environment.MathEnvironment"
PUZZLE = "greenroom.environments.sliding_puzzle.SlidingPuzzleEnvironment"


def test_every_working_node_holds_it_and_the_head_is_not_asked(nodes: Nodes, project: Path, venv_dir: Path) -> None:
    assert len(venvs.working_nodes()) == 3
    python = create_local_venv_on_each_node(command(project, "left"), "Left")
    assert [f"{venv}/bin/python" for venv in finished(venv_dir)] == [python]
    assert describe_venv(python)["installed"] == {"six": "1.17.0"}
    # A second time nothing is made.
    before = (Path(python).parents[1] / STAMP).stat()
    assert create_local_venv_on_each_node(command(project, "left"), "Left") == python
    assert (Path(python).parents[1] / STAMP).stat().st_mtime_ns == before.st_mtime_ns


def test_a_prebuilt_venv_is_checked_on_every_node_and_changed_on_none(
    nodes: Nodes, project: Path, venv_dir: Path
) -> None:
    python = create_local_venv(command(project, "left"), "Left")
    before = {path: os.lstat(path).st_mtime_ns for path in Path(python).parents[1].rglob("*")}
    assert create_local_venv_on_each_node(python, "Left") == python
    assert {path: os.lstat(path).st_mtime_ns for path in Path(python).parents[1].rglob("*")} == before
    (Path(python).parents[1] / STAMP).unlink()
    with pytest.raises(VenvError, match=r"3 of 3 nodes have no venv:.*has no stamp"):
        create_local_venv_on_each_node(python, "Left")
    assert not (Path(python).parents[1] / STAMP).exists()


def test_nodes_that_agree_on_another_venv_than_the_driver_expects_are_refused(
    nodes: Nodes, project: Path, venv_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = create_local_venv_on_each_node(command(project, "left"), "Left")
    assert venvs.expected_versions(python) == venvs.expected_versions(command(project, "left")) == {"six": "1.17.0"}
    # A driver of a newer image; the nodes' venv is complete, and the same on all of them.
    monkeypatch.setattr(venvs, "expected_versions", lambda executable: {"six": "1.18.0"})
    with pytest.raises(
        VenvError, match=r"the venv on 127\.0\.0\.2 is not what the driver expects: six 1\.17\.0, not 1\.18\.0"
    ):
        create_local_venv_on_each_node(python, "Left")


def test_an_empty_venv_is_refused(nodes: Nodes, project: Path, venv_dir: Path) -> None:
    with pytest.raises(VenvError, match="is empty"):
        create_local_venv_on_each_node(command(project), "Nothing")


def test_a_node_that_cannot_make_it_is_named(nodes: Nodes, project: Path, venv_dir: Path, tmp_path: Path) -> None:
    (project / "uv.lock").rename(tmp_path / "uv.lock")
    try:
        with pytest.raises(VenvError, match=r"Left: 3 of 3 nodes have no venv: \S+: .*uv\.lock cannot be read"):
            create_local_venv_on_each_node(command(project, "left"), "Left")
    finally:
        (tmp_path / "uv.lock").rename(project / "uv.lock")


DRIVER = """
import sys
import greenroom.distributed
import ray
from greenroom.distributed.venvs import create_local_venv_on_each_node
ray.init(address=sys.argv[1], log_to_driver=False, configure_logging=False)
print(create_local_venv_on_each_node(sys.argv[2], "Left", timeout=120))
"""


def test_two_drivers_at_once_make_one_venv(nodes: Nodes, project: Path, venv_dir: Path) -> None:
    argv = [sys.executable, "-c", DRIVER, nodes.address, command(project, "left")]
    drivers = [subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [driver.communicate(timeout=120) for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0], told
    assert told[0][0] == told[1][0]
    assert len(finished(venv_dir)) == 1 and left_behind(venv_dir) == []


def test_a_uv_that_hangs_on_every_node_ends_in_time(
    nodes: Nodes, project: Path, venv_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(venvs, "PASSED_ON", (*venvs.PASSED_ON, "PATH"))
    monkeypatch.setenv("PATH", first_in_path(other_uv(tmp_path / "hung", 'case "$1" in sync) sleep 600;; esac')))
    began = time.monotonic()
    with pytest.raises(VenvError, match=r"nodes have no venv.*no end within"):
        create_local_venv_on_each_node(command(project, "left"), "Left", timeout=6)
    assert time.monotonic() - began < 40
    assert finished(venv_dir) == []


def test_a_full_disk_is_told_by_node_and_leaves_nothing(
    nodes: Nodes, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        monkeypatch.setenv("GREENROOM_LOCAL_VENV_DIR", str(disk))
        with pytest.raises(VenvError, match=r"3 of 3 nodes have no venv: 127\.0\.0\.2: .*No space left on device"):
            create_local_venv_on_each_node(command(project, "left"), "Left", timeout=60)
        assert finished(disk) == [] and left_behind(disk) == []


def test_a_stamp_of_another_lock_is_not_reused_by_any_node(nodes: Nodes, project: Path, venv_dir: Path) -> None:
    python = create_local_venv_on_each_node(command(project, "left"), "Left")
    stamp = Path(python).parents[1] / STAMP
    right = stamp.read_text()
    stamp.write_text(right.replace("1.17.0", "1.16.0"))
    assert create_local_venv_on_each_node(command(project, "left"), "Left") == python
    assert stamp.read_text() == right


# --- the runtime environment


def test_an_actor_s_environment_is_an_allow_list(nodes: Nodes, venv_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "secret")
    monkeypatch.setenv("HF_HOME", "/models")
    monkeypatch.setenv("MINE", "1")
    runtime_env = make_actor_runtime_env(PUZZLE, env_vars={"EXTRA": "2"}, pass_on=["MINE", "NOT_SET"])
    assert runtime_env["py_executable"] == sys.executable
    assert {"HF_HOME": "/models", "MINE": "1", "EXTRA": "2"}.items() <= runtime_env["env_vars"].items()
    assert "SOME_TOKEN" not in runtime_env["env_vars"] and "NOT_SET" not in runtime_env["env_vars"]
    assert set(runtime_env["env_vars"]) <= {*venvs.PASSED_ON, "MINE", "EXTRA"}


def test_an_actor_with_a_venv_of_its_own(nodes: Nodes, venv_dir: Path) -> None:
    runtime_env = make_actor_runtime_env(MATH)
    (venv,) = finished(venv_dir)
    assert runtime_env["py_executable"] == f"{venv}/bin/python"
    assert runtime_env["env_vars"]["VIRTUAL_ENV"] == str(venv)
    assert {"math-verify", "ray", "greenroom"} <= describe_venv(runtime_env["py_executable"])["installed"].keys()


def test_an_unknown_actor_has_none(nodes: Nodes) -> None:
    with pytest.raises(ActorEnvironmentError, match="next: add it to ACTOR_ENVIRONMENTS"):
        make_actor_runtime_env("no.Such")


def test_rays_own_uv_hook_is_off() -> None:
    code = "import greenroom.distributed, ray._private.ray_constants as c; print(c.RAY_ENABLE_UV_RUN_RUNTIME_ENV)"
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ENABLE_UV_RUN_RUNTIME_ENV"}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert told.stdout.strip() == "False", told.stderr
    late = "import ray; " + code
    told = subprocess.run([sys.executable, "-c", late], env=environment, capture_output=True, text=True, timeout=60)
    assert told.stdout.strip() == "False", told.stderr
