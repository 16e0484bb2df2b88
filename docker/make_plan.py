"""Make the plan inside the build: manifest + lock → /plan.

Writes one directory for each later step, which sees that directory only, so that it runs again when its own
part has changed and not otherwise:

- `wheels/<group>/<slot>.json`: each slot's files, where they come from and which sets need them;
- `project/project.json`: what is built from the project's own directory, and for which sets;
- `compile/<place>/part.json`: what a source-built stage compiles, in the same form;
- `finish/<place>/finish.json` and `finish/<place>/stamps/<set>.json`: the sets and actors that a step finishes. Place 0
  finishes those that need nothing compiled, the others are the source-built stages in their order.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from greenroom.errors import GreenroomError
from greenroom.files import write_aside
from greenroom.lock import Local
from greenroom.plan import Plan, check_wrapper_names, expected_stamp
from greenroom.planner import Planned, plan_project
from greenroom.probe import probe
from greenroom.slots import FETCH_GROUPS, assign
from greenroom.source_builds import PLACES
from greenroom.target import Target


def parts(planned: Planned, uv: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return each slot's part of the plan, and each source-built stage's."""
    plan = planned.plan
    users: dict[str, list[str]] = {}
    for environment_set in plan.sets:
        for filename in environment_set.files:
            users.setdefault(filename, []).append(environment_set.name)
    artifacts = {artifact.filename: artifact for artifact in plan.artifacts}
    builds = {build.filename: build for build in plan.builds}

    def located(filename: str) -> dict[str, Any]:
        return {"artifact": asdict(artifacts[filename]), "url": planned.urls[filename]}

    def entry(filename: str) -> dict[str, Any]:
        listed = {**located(filename), "sets": users[filename]}
        if build := builds.get(filename):
            listed |= {"settings": asdict(build.settings), "requires": [located(name) for name in build.requires]}
        return listed

    def part(filenames: Iterable[str]) -> dict[str, Any]:
        listed = [entry(filename) for filename in filenames]
        result: dict[str, Any] = {"target": asdict(plan.target), "files": listed}
        if any("settings" in item for item in listed):
            result |= {"uv": uv, "exclude_newer": planned.rules.exclude_newer}
        return result

    slots = [part(artifact.filename for artifact in slot) for slot in assign(plan.slot_artifacts)]
    stages = [part(build.filename for build in plan.builds if build.stage == stage) for stage in plan.source_stages]
    return slots, stages


def own_sources(planned: Planned) -> list[dict[str, Any]]:
    """Return what is built from the project's directory: the project itself, when it is a package, and what lies in it."""
    plan, rules = planned.plan, planned.rules

    def listed(source: Local, sets: Sequence[str], mounted: str = "") -> dict[str, Any]:
        settings = rules.settings_of(source.name, plan.closure(sets[0]) if sets else {})
        return {**asdict(source), "sets": list(sets), "mounted": mounted, "settings": asdict(settings)}

    sources = [listed(local.source, local.sets, local.mounted) for local in plan.locals]
    if plan.project:
        name, version = plan.project
        project = Local(name=name, version=version, path=".", kind="directory", sha256="")
        sources.append(listed(project, [item.name for item in plan.sets], plan.project_mounted))
    return sources


def finishing(plan: Plan, place: int) -> dict[str, Any]:
    """Return which sets and actors a place of the Dockerfile finishes: 0 those without anything compiled."""
    stages = ["", *plan.source_stages]
    names = [name for name, stage in plan.finishing_stages.items() if stages.index(stage) == place]
    actors = [
        {"fqn": actor.fqn, "environment_set": actor.environment_set}
        for actor in plan.included
        if actor.environment_set in names
    ]
    return {"sets": names, "actors": actors}


def write_json(path: Path, value: object) -> None:
    """Write a JSON file."""
    write_aside(path, json.dumps(value, indent=1, sort_keys=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--project", type=Path, required=True)
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--stage", default="all")
    parser.add_argument("--skip", default="", help="extras to skip, separated by spaces")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    os.environ["UV_PYTHON_DOWNLOADS"] = "never"
    uv = str(Path(sys.executable).with_name("uv"))
    try:
        planned = plan_project(
            uv=uv,
            project=args.project,
            manifest=args.manifest,
            stage=args.stage,
            skip=args.skip.split(),
            target=Target.from_probe(probe()),
        )
        check_wrapper_names(planned.plan)
    except GreenroomError as error:
        print(f"greenroom: {error}", file=sys.stderr)
        return error.exit_code
    plan = planned.plan
    slots, stages = parts(planned, version("uv"))
    for group, numbers in enumerate(FETCH_GROUPS):
        for number in numbers:
            write_json(args.out / "wheels" / str(group) / f"{number:02d}.json", slots[number])
    for place in range(1, PLACES + 1):
        stage = stages[place - 1] if place <= len(stages) else None
        write_json(args.out / "compile" / str(place) / "part.json", stage or {"files": []})
    write_json(
        args.out / "project" / "project.json",
        {"sources": own_sources(planned), "exclude_newer": planned.rules.exclude_newer},
    )
    for place in range(PLACES + 1):
        finished = finishing(plan, place)
        write_json(args.out / "finish" / str(place) / "finish.json", finished)
        for name in finished["sets"]:
            stamp = expected_stamp(plan, name, uv_version=version("uv"))
            write_json(args.out / "finish" / str(place) / "stamps" / f"{name}.json", stamp)
    print(
        f"greenroom: plan {plan.digest}: {len(plan.included)} venvs, {len(plan.sets)} sets, {len(plan.artifacts)} files"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
