"""One timed build of an image: ours, and the baselines. The same command line, context, network and secrets."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from greenroom import pipeline
from greenroom.build import BUILD_TIMEOUT, BuildRequest, build_arguments, read_secrets, secret_arguments, with_secrets
from greenroom.container import image_target
from greenroom.engine import Engine
from greenroom.errors import BuildError
from greenroom.planner import Planned
from greenroom.process import ProcessError
from greenroom.progress import BuildProgress
from greenroom.selection import select
from lab import BASE, settle_disk

HERE = Path(__file__).parent
OURS = "ours"
ONE_LAYER = "one_layer"
SYMLINK = "symlink"
BASELINES = (ONE_LAYER, SYMLINK)


@dataclass(frozen=True, kw_only=True)
class Build:
    """A build that ended.

    Attributes:
        tag: the image.
        seconds: from the start of `docker buildx build` to its end: downloads, steps and export.
        planning_seconds: what our own command spends on the host before that; 0 for a baseline.
        cached_steps: steps that did not have to run.
        steps: (seconds, name) of those that did, longest first.
        plan: what the image holds; None for a baseline.
    """

    tag: str
    seconds: float
    planning_seconds: float
    cached_steps: int
    steps: tuple[tuple[float, str], ...]
    plan: Planned | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the numbers, with the twelve longest steps."""
        return {
            "seconds": round(self.seconds, 2),
            "planning_seconds": round(self.planning_seconds, 2),
            "cached_steps": self.cached_steps,
            "longest_steps": [[round(seconds, 2), name[:80]] for seconds, name in self.steps[:12]],
        }


def plan_of(engine: Engine, project: Path) -> Planned:
    """Plan a project for the base image, as the command does before it builds."""
    return pipeline.plan(select(project), target=image_target(engine, BASE))


def build(
    engine: Engine,
    side: str,
    project: Path,
    tag: str,
    *,
    context: Path,
    bytecode: bool = False,
    no_cache: bool = False,
) -> Build:
    """Build an image and time it.

    Args:
        engine: where.
        side: "ours", or the name of a baseline's directory.
        project: the project's directory, with its lock.
        tag: the image's tag.
        context: our Dockerfile and the build's scripts, as `copy_pipeline` makes them.
        bytecode: compile bytecode; ours only.
        no_cache: run every step again.

    Raises:
        BuildError: a step failed.
    """
    if side == OURS:
        return _build_ours(engine, project, tag, context=context, bytecode=bytecode, no_cache=no_cache)
    values = {"BASE_IMAGE": BASE, "MANIFEST": "actor_environments.py"}
    contexts = {"venvs": HERE / "venvs", "greenroom": context}
    arguments = ["buildx", "build", "--builder", "default", "--progress", "rawjson", "--network", "host", "--load"]
    arguments += ["--file", str(HERE / side / "Dockerfile"), "--target", "release", "--tag", tag]
    for name, value in values.items():
        arguments += ["--build-arg", f"{name}={value}"]
    for name, source in contexts.items():
        arguments += ["--build-context", f"{name}={source}"]
    if no_cache:
        arguments.append("--no-cache")
    # The lock's hosts decide which credentials a build sees; they are ours' plan's.
    secrets = read_secrets(os.environ, plan_of(engine, project).urls.values())
    arguments += secret_arguments(secrets)
    return _timed(with_secrets(engine, secrets), [*arguments, str(project)], tag)


def _build_ours(engine: Engine, project: Path, tag: str, *, context: Path, bytecode: bool, no_cache: bool) -> Build:
    settle_disk()
    began = time.monotonic()
    planned = plan_of(engine, project)
    secrets = read_secrets(os.environ, planned.urls.values())
    request = BuildRequest(
        project=select(project).project,
        plan=planned.plan,
        base_image=BASE,
        tag=tag,
        urls=planned.urls,
        no_cache=no_cache,
        bytecode=bytecode,
    )
    arguments = build_arguments(request, context, secrets)
    planning = time.monotonic() - began
    return _timed(with_secrets(engine, secrets), arguments, tag, planning=planning, planned=planned)


def build_dockerfile(engine: Engine, dockerfile: Path, project: Path, tag: str) -> Build:
    """Build a Dockerfile that needs nothing but the base image: what the engine itself takes."""
    arguments = ["buildx", "build", "--builder", "default", "--progress", "rawjson", "--network", "none", "--load"]
    arguments += ["--file", str(dockerfile), "--tag", tag, "--build-arg", f"BASE_IMAGE={BASE}", str(project)]
    return _timed(engine, arguments, tag)


def _timed(
    engine: Engine, arguments: list[str], tag: str, *, planning: float = 0.0, planned: Planned | None = None
) -> Build:
    settle_disk()
    with BuildProgress() as progress:
        began = time.monotonic()
        try:
            engine.cli(*arguments, changes=True, timeout=BUILD_TIMEOUT, on_stderr=progress.feed)
        except ProcessError as error:
            raise BuildError(progress.failure() or f"docker buildx build: {error.reason}") from error
        seconds = time.monotonic() - began
    steps = sorted(((step.seconds, step.name) for step in progress.steps.values() if not step.cached), reverse=True)
    return Build(
        tag=tag,
        seconds=seconds,
        planning_seconds=planning,
        cached_steps=progress.cached_steps,
        steps=tuple(steps),
        plan=planned,
    )
