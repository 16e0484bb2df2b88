"""Doing nothing, and editing one source file, in a project that is a package: a copy of this repository."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import workload
from builds import OURS, build_dockerfile
from greenroom.process import run
from harness import Bench, median, tag_of
from lab import BASE, settle_disk

COMMAND_TIMEOUT = 1800.0
FLOOR = "ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nCOPY pyproject.toml /project/\n"
"""The least that an image can be: what the engine takes when it finds every step cached."""


def edit(bench: Bench) -> None:
    """Measure noop_seconds and source_edit_seconds: planning and building, without verification."""
    project = workload.own_project(bench.project("own"))
    tag = tag_of(OURS, "own", bytecode=True)
    raw = bench.outcome.raw
    raw["first_build"] = bench.build(OURS, project, tag, bytecode=True).to_json()
    dockerfile = bench.project("own") / "build" / "floor" / "Dockerfile"
    dockerfile.parent.mkdir(parents=True, exist_ok=True)
    dockerfile.write_text(FLOOR, encoding="utf-8")
    build_dockerfile(bench.engine, dockerfile, project, tag_of("floor", "own"))
    noops, edits, floors = [], [], []
    for number in range(bench.repeats):
        floors.append(build_dockerfile(bench.engine, dockerfile, project, tag_of("floor", "own")))
        noops.append(bench.build(OURS, project, tag, bytecode=True))
        workload.edit_source(project, number)
        edits.append(bench.build(OURS, project, tag, bytecode=True))
    raw["engine_alone_seconds"] = [round(item.seconds, 2) for item in floors]
    raw["noop"] = [item.to_json() for item in noops]
    raw["source_edit"] = [item.to_json() for item in edits]
    bench.outcome.figures["noop_seconds"] = median(item.seconds + item.planning_seconds for item in noops)
    bench.outcome.figures["source_edit_seconds"] = median(item.seconds + item.planning_seconds for item in edits)
    raw["whole_command_seconds"] = _whole_command(bench, project)


def _whole_command(bench: Bench, project: Path) -> dict[str, float]:
    """Time `greenroom image` as users run it, verification included, with nothing changed and after an edit."""
    seconds = {}
    for name in ("first", "noop", "source_edit"):
        if name == "source_edit":
            workload.edit_source(project, -1)
        settle_disk()
        began = time.monotonic()
        argv = [
            str(Path(sys.executable).with_name("greenroom")),
            "image",
            "--project",
            str(project),
            "--base-image",
            BASE,
        ]
        run([*argv, "--tag", tag_of(OURS, "command")], env=bench.engine.environment, timeout=COMMAND_TIMEOUT)
        seconds[name] = round(time.monotonic() - began, 2)
    return seconds
