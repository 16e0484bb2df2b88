"""Make the plan inside the build: manifest + lock → /plan.

Writes `plan.json`, `urls.json` (filename → address; it stays in its stage) and `stamps/<set>.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

from greenroom.errors import GreenroomError
from greenroom.files import write_aside
from greenroom.plan import check_wrapper_names, expected_stamp
from greenroom.planner import plan_project
from greenroom.probe import probe
from greenroom.target import Target


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
    write_aside(args.out / "plan.json", plan.to_json())
    write_aside(args.out / "urls.json", json.dumps(planned.urls, indent=1, sort_keys=True))
    for environment_set in plan.sets:
        stamp = expected_stamp(plan, environment_set.name, uv_version=version("uv"))
        write_aside(args.out / "stamps" / f"{environment_set.name}.json", json.dumps(stamp, indent=1, sort_keys=True))
    print(
        f"greenroom: plan {plan.digest}: {len(plan.included)} venvs, {len(plan.sets)} sets, {len(plan.artifacts)} files"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
