"""Build the project's own wheel into a slot of its own, for every set: /source → /slot."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from fetch_wheels import build_wheel
from greenroom.errors import GreenroomError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    part = json.loads((args.plan / "project.json").read_text())
    args.out.mkdir()
    entries = []
    if part["project"]:
        name, version = part["project"]
        try:
            with tempfile.TemporaryDirectory() as aside:
                build_wheel(args.source, Path(aside), name=name)
                (wheel,) = Path(aside).glob("*.whl")
                (args.out / wheel.name).write_bytes(wheel.read_bytes())
        except GreenroomError as error:
            print(f"greenroom: {error}", file=sys.stderr)
            return error.exit_code
        entries.append({"name": name, "version": version, "wheel": wheel.name, "sets": part["sets"]})
    (args.out / "slot.json").write_text(json.dumps(entries, indent=1, sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
