"""Venvs on every node of a Ray cluster, and the runtime environment that starts an actor from its venv.

Nodes are asked in parallel, each by a task that is pinned to it, and all must report the same non-empty venv. A node
that takes no work (a head without CPUs) is left out. A node that dies meanwhile is left out as well, and one that
joins is asked too.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ray
from packaging.version import Version
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from greenroom.distributed.drift import SHOWN
from greenroom.distributed.local_venvs import (
    BUILD_TIMEOUT,
    VenvError,
    create_local_venv,
    describe_venv,
    parse_uv_run,
)
from greenroom.distributed.lock_reader import UnreadableLockError, locked_closure, read_lock
from greenroom.distributed.ray_actor_environment_registry import (
    PY_EXECUTABLES,
    REGISTRY,
    Registry,
    get_actor_python_env,
    source_root,
)
from greenroom.stamps import read_stamp

__all__ = ["VenvError", "create_local_venv", "create_local_venv_on_each_node", "make_actor_runtime_env"]

logger = logging.getLogger(__name__)

ROUNDS = 4
"""How often the nodes are looked at anew: nodes die and join while venvs are made."""
LOSS_PATIENCE = 15.0
"""Seconds until a node that has died counts as dead in the cluster; Ray's health checks take about ten."""
PASSED_ON = (
    "GREENROOM_ALLOW_DRIFT",
    "GREENROOM_CACHE_DIR",
    "GREENROOM_LOCAL_VENV_DIR",
    "GREENROOM_PY_EXECUTABLES_SYSTEM",
    "HF_DATASETS_OFFLINE",
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "LANG",
    "LC_ALL",
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "SSL_CERT_FILE",
    "TOKENIZERS_PARALLELISM",
    "TRANSFORMERS_OFFLINE",
    "TZ",
    "VENV_DIR",
)
"""Variables of the driver that actors get. Whatever else the driver has, tokens included, is not sent to them. (What a
node's Ray was started with, its workers inherit: keep tokens out of there.)"""
IDLE_RESOURCES = ("memory", "object_store_memory")
"""Resources that a node has even when it takes no work."""


def create_local_venv_on_each_node(py_executable: str, venv_name: str, *, timeout: float = BUILD_TIMEOUT) -> str:
    """Make a venv on every node of the cluster that takes work, and check that all hold the same.

    Args:
        py_executable: `uv run --locked … --directory ROOT`, as the registry gives it; or the interpreter of a prebuilt
            venv, which is then checked on every node and changed on none.
        venv_name: a name for people, such as the actor's class.
        timeout: seconds for everything.

    Returns:
        The path of the interpreter, the same on every node.

    Raises:
        VenvError: a node cannot make it in time, or two nodes differ; the nodes are named.
    """
    deadline = time.monotonic() + timeout
    expected = expected_versions(py_executable)
    reports: dict[str, dict[str, Any]] = {}
    for _ in range(ROUNDS):
        nodes = working_nodes()
        reports = {node: report for node, report in reports.items() if node in nodes}
        missing = {node: address for node, address in nodes.items() if node not in reports}
        if nodes and not missing:
            return _agreed(reports, nodes, venv_name, expected)
        if not nodes:
            raise VenvError(f"{venv_name}: no node of the cluster takes work | next: add a node with CPUs")
        reports |= _ask(missing, py_executable, venv_name, deadline)
    raise VenvError(f"{venv_name}: nodes come and go faster than venvs are made | next: start again when they stay")


def working_nodes() -> dict[str, str]:
    """Return the living nodes that take work: id → address. A head that was started without CPUs and GPUs takes none."""
    return {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"] and _takes_work(node)}


def _takes_work(node: Mapping[str, Any]) -> bool:
    return any(
        amount > 0 and name not in IDLE_RESOURCES and not name.startswith("node:")
        for name, amount in node["Resources"].items()
    )


def expected_versions(py_executable: str) -> dict[str, str] | None:
    """Return what the driver expects of a venv: distribution → version; None when it has nothing to go by.

    Nodes that agree with each other may still all be of an older image than the driver.
    """
    try:
        if Path(py_executable).is_absolute():
            return read_stamp(Path(py_executable).parents[1]).versions
        command = parse_uv_run(py_executable)
        locked = locked_closure(read_lock(command.root / "uv.lock"), sorted(set(command.extras)))
        return {name: item.version for name, item in locked.items() if item.version}
    except (ValueError, UnreadableLockError):
        # The driver has no such venv or no lock; nodes say themselves what they lack.
        return None


def _make_and_describe(py_executable: str, venv_name: str, timeout: float) -> dict[str, Any]:
    prebuilt = Path(py_executable).is_absolute()
    interpreter = py_executable if prebuilt else create_local_venv(py_executable, venv_name, timeout=timeout)
    return describe_venv(interpreter)


def _ask(nodes: Mapping[str, str], py_executable: str, venv_name: str, deadline: float) -> dict[str, dict[str, Any]]:
    """Have each node make its venv; return the reports of those that are still there."""
    left = max(1.0, deadline - time.monotonic())
    # No CPUs: a node whose CPUs are all taken by actors can still be asked.
    task = ray.remote(num_cpus=0, max_retries=0)(_make_and_describe)
    variables = passed_on()
    running = {
        task.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False),
            runtime_env={"py_executable": PY_EXECUTABLES.SYSTEM, "env_vars": variables},
        ).remote(py_executable, venv_name, left): node
        for node in nodes
    }
    reports: dict[str, dict[str, Any]] = {}
    failures: list[str] = []
    lost: dict[str, str] = {}
    waiting = list(running)
    while waiting:
        # A little longer than the nodes have, so that they can say themselves what took so long.
        done, waiting = ray.wait(waiting, timeout=max(0.1, deadline + 5 - time.monotonic()))
        if not done:
            failures += [f"{nodes[running[reference]]}: no answer in time" for reference in waiting]
            for reference in waiting:
                ray.cancel(reference, force=True)
            break
        node = running[done[0]]
        try:
            reports[node] = ray.get(done[0], timeout=10)
            logger.info("%s: venv on %s, %d of %d", venv_name, nodes[node], len(reports), len(nodes))
        except RayTaskError as error:
            failures.append(f"{nodes[node]}: {error.cause if isinstance(error.cause, Exception) else error}")
        except (RayError, GetTimeoutError) as error:
            lost[node] = str(error)
    for node in _still_there(lost):
        failures.append(f"{nodes[node]}: {lost[node]}")
    if failures:
        raise VenvError(f"{venv_name}: {len(failures)} of {len(nodes)} nodes have no venv: " + " ;; ".join(failures))
    return reports


def _still_there(suspects: Iterable[str]) -> list[str]:
    """Return the nodes whose task was lost and that live on; the cluster notices a little later that a node has died."""
    deadline = time.monotonic() + LOSS_PATIENCE
    left = list(suspects)
    while left := [node for node in left if node in working_nodes()]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    return left


def _agreed(
    reports: Mapping[str, Mapping[str, Any]],
    nodes: Mapping[str, str],
    venv_name: str,
    expected: Mapping[str, str] | None,
) -> str:
    first_node, first = next(iter(reports.items()))
    if not first["installed"]:
        raise VenvError(f"{venv_name}: the venv on {nodes[first_node]} is empty | next: build it again")
    for node, report in reports.items():
        if wrong := _unexpected(report["installed"], expected):
            raise VenvError(
                f"{venv_name}: the venv on {nodes[node]} is not what the driver expects: {', '.join(wrong[:SHOWN])} | likely "
                "cause: the node runs another image, or has other sources | next: start all nodes from the driver's image"
            )
        differing = [key for key in ("interpreter", "python", "installed", "closure") if report[key] != first[key]]
        if not differing:
            continue
        ours, theirs = first[differing[0]], report[differing[0]]
        if differing[0] in ("installed", "closure"):
            ours, theirs = (sorted(set(a.items()) - set(b.items())) for a, b in ((ours, theirs), (theirs, ours)))
        raise VenvError(
            f"{venv_name}: nodes differ in {differing[0]}: {nodes[first_node]} has {ours}, {nodes[node]} has {theirs} | "
            "likely cause: nodes of two images, or two states of the sources | next: start all nodes from one image"
        )
    return str(first["interpreter"])


def _unexpected(installed: Mapping[str, str], expected: Mapping[str, str] | None) -> list[str]:
    """Return how a venv differs from what is expected; nothing is when nothing is known."""
    if expected is None:
        return []
    return [
        f"{name} {installed.get(name, 'is missing')}, not {expected[name]}"
        for name in sorted(expected)
        if installed.get(name) is None or Version(installed[name]) != Version(expected[name])
    ]


def passed_on(more: Iterable[str] = ()) -> dict[str, str]:
    """Return the driver's variables that actors get: those of `PASSED_ON`, and more by name.

    Raises:
        TypeError: one name was given where a list of names is meant.
    """
    if isinstance(more, str):
        raise TypeError(f"pass_on takes a list of names: [{more!r}]")
    return {name: os.environ[name] for name in sorted({*PASSED_ON, *more}) if name in os.environ}


def make_actor_runtime_env(
    actor_class_fqn: str,
    *,
    env_vars: Mapping[str, str] | None = None,
    pass_on: Iterable[str] = (),
    timeout: float = BUILD_TIMEOUT,
    registry: Registry | None = None,
) -> dict[str, Any]:
    """Return the runtime environment that starts an actor from its venv, which is made or checked on every node first.

    Args:
        actor_class_fqn: the actor's fully-qualified class name.
        env_vars: variables that the actor gets besides.
        pass_on: names of further variables of the driver that it gets.
        timeout: seconds for making venvs.
        registry: another project's; greenroom's own when None.

    Returns:
        Ray's `runtime_env`: `py_executable`, and `env_vars` with `VIRTUAL_ENV`. Where the driver runs sources that are
        mounted over an image, `PYTHONPATH` names them.

    Raises:
        ActorEnvironmentError: the actor is not registered, or cannot be started here.
        VenvError: a node cannot make its venv, or nodes differ.
    """
    # Our own registry's answers are made once, when it is imported.
    py_executable = registry.py_executable(actor_class_fqn) if registry else get_actor_python_env(actor_class_fqn)
    chosen = registry or REGISTRY
    variables = {**passed_on(pass_on), **(env_vars or {})}
    if chosen.runs_in_driver(actor_class_fqn):
        return {"py_executable": py_executable, "env_vars": variables}
    if registry is None and (root := source_root()) is not None and Path(py_executable).is_absolute():
        # Sources that are mounted over the image are the driver's code, so they are the actors' code too.
        variables.setdefault("PYTHONPATH", str(root / "src"))
    name = actor_class_fqn.rsplit(".", 1)[-1]
    interpreter = create_local_venv_on_each_node(py_executable, name, timeout=timeout)
    return {"py_executable": interpreter, "env_vars": {**variables, "VIRTUAL_ENV": str(Path(interpreter).parents[1])}}
