"""Make the plan inside the build: manifest + lock → /plan.

Writes one directory for each later step, which sees that directory only, so that it runs again when its own
part has changed and not otherwise:

- `wheels/<group>/<slot>.json`: each slot's files, where they come from and which sets need them;
- `project/project.json`: the project's name and version and the sets, for its own wheel;
- `finish/plan.json` and `finish/stamps/<set>.json`: what the last step makes and checks.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from greenroom.errors import GreenroomError
from greenroom.files import write_aside
from greenroom.plan import check_wrapper_names, expected_stamp
from greenroom.planner import Planned, plan_project
from greenroom.probe import probe
from greenroom.slots import FETCH_GROUPS, assign
from greenroom.target import Target


def slot_parts(planned: Planned) -> list[dict[str, Any]]:
    """Return each slot's part of the plan."""
    plan = planned.plan
    users: dict[str, list[str]] = {}
    for environment_set in plan.sets:
        for filename in environment_set.files:
            users.setdefault(filename, []).append(environment_set.name)
    return [
        {
            "target": asdict(plan.target),
            "files": [
                {"artifact": asdict(item), "url": planned.urls[item.filename], "sets": users[item.filename]}
                for item in artifacts
            ],
        }
        for artifacts in assign(plan.artifacts)
    ]


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
    sets = [environment_set.name for environment_set in plan.sets]
    parts = slot_parts(planned)
    for group, numbers in enumerate(FETCH_GROUPS):
        for number in numbers:
            write_json(args.out / "wheels" / str(group) / f"{number:02d}.json", parts[number])
    write_json(args.out / "project" / "project.json", {"project": plan.project, "sets": sets})
    write_aside(args.out / "finish" / "plan.json", plan.to_json())
    for name in sets:
        write_json(
            args.out / "finish" / "stamps" / f"{name}.json", expected_stamp(plan, name, uv_version=version("uv"))
        )
    print(
        f"greenroom: plan {plan.digest}: {len(plan.included)} venvs, {len(plan.sets)} sets, {len(plan.artifacts)} files"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
