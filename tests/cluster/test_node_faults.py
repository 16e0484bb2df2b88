"""Nodes that die or differ while venvs are made. Each test has a cluster of its own."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from tests.cluster.support import NODE, Nodes, command, first_in_path, left_behind, other_uv

from greenroom.distributed import venvs
from greenroom.distributed.local_venvs import describe_venv
from greenroom.distributed.venvs import VenvError, create_local_venv_on_each_node


def test_nodes_that_differ_are_named(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_nodes: Nodes
) -> None:
    # Set for one node only; what the driver has set is passed on to all.
    monkeypatch.delenv("GREENROOM_LOCAL_VENV_DIR", raising=False)
    monkeypatch.setenv("GREENROOM_CACHE_DIR", str(tmp_path / "cache"))
    own_nodes.cluster.add_node(num_cpus=1, **NODE, env_vars={"GREENROOM_LOCAL_VENV_DIR": str(tmp_path / "elsewhere")})
    with pytest.raises(VenvError, match=r"nodes differ in interpreter: .*likely cause: nodes of two images"):
        create_local_venv_on_each_node(command(project, "left"), "Left")


def test_a_node_that_dies_while_it_builds_holds_up_nobody(
    own_nodes: Nodes, project: Path, venv_dir: Path, tmp_path: Path
) -> None:
    # The slow uv is slow once: the first to build is still at it when its node dies.
    slow = other_uv(
        tmp_path / "slow",
        f'case "$1" in sync) if mkdir {tmp_path}/first 2>/dev/null; then echo $$ > {tmp_path}/uv.pid; sleep 60; fi;; esac',
    )
    failure: list[BaseException] = []
    made: list[str] = []

    def ask() -> None:
        try:
            made.append(create_local_venv_on_each_node(command(project, "left"), "Left", timeout=120))
        except BaseException as error:
            failure.append(error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(venvs, "PASSED_ON", (*venvs.PASSED_ON, "PATH"))
        patch.setenv("PATH", first_in_path(slow))
        thread = threading.Thread(target=ask)
        thread.start()
        deadline = time.monotonic() + 60
        while not (tmp_path / "uv.pid").exists():
            assert time.monotonic() < deadline and not failure, failure
            time.sleep(0.1)
        builder = builder_of(venv_dir)
        (victim,) = [node for node in own_nodes.workers if is_ancestor(raylet_of(node), builder)]
        own_nodes.kill(victim)
        thread.join(120)
    assert not thread.is_alive() and not failure, failure
    assert describe_venv(made[0])["installed"] == {"six": "1.17.0"}
    assert len(venvs.working_nodes()) == 2
    assert left_behind(venv_dir) == []


def builder_of(directory: Path) -> int:
    """Return the process that builds below a directory."""
    (record,) = directory.glob(".*.builder")
    return int(record.read_text().split()[1])


def raylet_of(node: object) -> int:
    """Return the process of a node's raylet."""
    (info,) = node.all_processes["raylet"]  # type: ignore[attr-defined]
    return int(info.process.pid)


def is_ancestor(ancestor: int, pid: int) -> bool:
    """Return whether a process was started by another, at whatever distance."""
    while pid > 1:
        if pid == ancestor:
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False
