"""Starting actors on Ray: from a venv that was made before, and by `uv run` for each actor."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import workload
from greenroom.distributed.local_venvs import DIRECTORY_VARIABLE, create_local_venv
from greenroom.distributed.ray_actor_environment_registry import uv_run
from greenroom.distributed.smoke import LOOPBACK, OBJECT_STORE_BYTES
from greenroom.ready_lock import uv_program
from harness import Bench, median, ratio
from lab import Unavailable, settle_disk

COUNTS = (1, 8, 32)
EXTRAS = ("math",)
START_TIMEOUT = 300.0


class Probe:
    """The least that an actor can be."""

    def answer(self) -> int:
        """Return its process."""
        return os.getpid()


def actors(bench: Bench) -> None:
    """Measure the seconds from creating actors to the last one's first answer, both ways, interleaved."""
    try:
        import ray  # noqa: F401 (only whether it is there)
    except ImportError as error:
        raise Unavailable("Ray is not installed where the bench runs") from error
    project = workload.own_project(bench.project("own"))
    by_uv = uv_run(EXTRAS, project)
    # Ray's workers look for uv where the nodes' Ray was started; ours starts here.
    os.environ["PATH"] = f"{Path(uv_program()).parent}{os.pathsep}{os.environ['PATH']}"
    before = os.environ.get(DIRECTORY_VARIABLE)
    os.environ[DIRECTORY_VARIABLE] = str(bench.lab.directory / "venvs")
    try:
        began = time.monotonic()
        prebuilt = create_local_venv(by_uv, "Math")
        bench.outcome.raw["making_the_venv_seconds"] = round(time.monotonic() - began, 2)
    finally:
        if before is None:
            del os.environ[DIRECTORY_VARIABLE]
        else:
            os.environ[DIRECTORY_VARIABLE] = before
    # Once before the clock: uv's cache and the project's own environment are then as warm as they get.
    _seconds(1, by_uv)
    series = []
    for count in COUNTS:
        seconds: dict[str, list[float]] = {"prebuilt": [], "uv_run": []}
        for _ in range(bench.repeats):
            for name, executable in (("prebuilt", prebuilt), ("uv_run", by_uv)):
                settle_disk()
                seconds[name].append(_seconds(count, executable))
        medians = {name: median(runs) for name, runs in seconds.items()}
        series.append(
            {
                "actors": count,
                **{f"{name}_seconds": value for name, value in medians.items()},
                "ratio": ratio(medians["prebuilt"], medians["uv_run"]),
                "runs": seconds,
            }
        )
        bench.outcome.raw["series"] = series


def _seconds(count: int, py_executable: str) -> float:
    """Return the seconds until every one of some actors has answered, on a cluster that has no worker yet."""
    import ray

    # The class travels whole: the venv does not have this module.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init(
        num_cpus=max(COUNTS),
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        _node_ip_address=LOOPBACK,
    )
    try:
        actor: Any = ray.remote(num_cpus=1)(Probe).options(runtime_env={"py_executable": py_executable})
        began = time.monotonic()
        handles = [actor.remote() for _ in range(count)]
        ray.get([handle.answer.remote() for handle in handles], timeout=START_TIMEOUT)
        return round(time.monotonic() - began, 3)
    finally:
        ray.shutdown()
