"""What the Ray tests share: clusters, locked projects, and a uv that is slow, hangs, or is counted."""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import greenroom.distributed  # noqa: F401 (before ray: see there)
from greenroom.distributed.ray_actor_environment_registry import uv_run
from greenroom.lock import uv_lock
from greenroom.process import run
from greenroom.ready_lock import uv_program

NODE: dict[str, Any] = {"object_store_memory": 80_000_000, "node_ip_address": "127.0.0.2"}
"""What all nodes have: little memory, and nothing but loopback. Ray takes 127.0.0.1 for this machine's outer address."""
REAL_UV = uv_program()


@dataclass
class Nodes:
    """A running cluster that this process is connected to.

    Attributes:
        cluster: Ray's cluster utility.
        workers: its working nodes.
    """

    cluster: Any
    workers: list[Any] = field(default_factory=list)

    @property
    def address(self) -> str:
        """Where another driver connects to."""
        return str(self.cluster.address)

    def kill(self, node: Any) -> None:
        """Kill a node, as a machine that loses its power."""
        self.cluster.remove_node(node, allow_graceful=False)
        self.workers.remove(node)


def start_nodes(count: int) -> Iterator[Nodes]:
    """Start a head without CPUs and some working nodes, yield them connected, and stop them."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, **NODE},
    )
    try:
        workers = [cluster.add_node(num_cpus=2, **NODE) for _ in range(count)]
        cluster.wait_for_nodes(timeout=60)
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        yield Nodes(cluster=cluster, workers=workers)
    finally:
        ray.shutdown()
        cluster.shutdown()


def write_locked_project(directory: Path, left: str = "six==1.17.0", right: str = "idna==3.10") -> Path:
    """Write and lock a project that is no package, with the extras left and right."""
    lines = ["[project]", 'name = "small"', 'version = "1.0"', 'requires-python = ">=3.11"']
    lines += ["[project.optional-dependencies]", f'left = ["{left}"]', f'right = ["{right}"]']
    lines += ["[tool.uv]", "package = false", 'exclude-newer = "2026-11-25T00:00:00Z"', ""]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "pyproject.toml").write_text("\n".join(lines))
    uv_lock(REAL_UV, directory)
    return directory


def command(project: Path, *extras: str) -> str:
    """Return the registry's command for some extras of a project."""
    return uv_run(extras, project)


def other_uv(directory: Path, *lines: str) -> Path:
    """Write a program named uv that does something before it becomes the real one; return its directory."""
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / "uv"
    program.write_text("\n".join(["#!/bin/sh", *lines, f'exec {shlex.quote(REAL_UV)} "$@"', ""]))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return directory


def first_in_path(directory: Path) -> str:
    """Return a PATH that begins with a directory."""
    return f"{directory}{os.pathsep}{os.environ['PATH']}"


def finished(directory: Path) -> list[Path]:
    """Return the finished venvs below a directory."""
    return sorted(path for path in directory.iterdir() if path.is_dir() and not path.name.startswith("."))


@contextlib.contextmanager
def small_disk(directory: Path) -> Iterator[Path]:
    """Mount a disk that is full after one empty venv and a half, and unmount it again."""
    directory.mkdir()
    run(["mount", "-t", "tmpfs", "-o", "size=60k", "none", directory], changes=True)
    try:
        yield directory
    finally:
        run(["umount", directory], changes=True)


def left_behind(directory: Path) -> list[Path]:
    """Return what builders that died have left."""
    return sorted(directory.glob(".*.aside-*"))
