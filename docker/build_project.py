"""Build what lies in the project's directory, the project itself included, into a slot: /source → /slot."""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from build_wheels import build_wheel, limit_age
from fetch_wheels import settings_of
from greenroom.errors import BuildError, GreenroomError
from greenroom.lock import Local
from venv_tree import EPOCH_IN_ZIP


def wheel_of(source: Local, item: dict[str, Any], root: Path, aside: Path) -> Path:
    """Return the wheel of something in the project's directory.

    Args:
        source: which.
        item: its entry in the plan.
        root: the project's directory.
        aside: an empty directory.

    Raises:
        BuildError: it is not there, is not what the lock says, or cannot be built.
    """
    if item["mounted"]:
        return mounted_wheel(source, item["mounted"], aside)
    path = root / source.path
    if not path.exists():
        raise BuildError(
            f"{source.name} is not at {source.path} in the project's directory",
            cause="the build leaves that path out: docker/Dockerfile.dockerignore",
            next_step="move it, or correct [tool.uv.sources]",
        )
    if source.sha256:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != source.sha256:
            raise BuildError(
                f"{source.path}: sha256 is {found}, the lock says {source.sha256}",
                cause="the file was replaced after the lock was made",
                next_step="find out why before you run uv lock again",
            )
    return path if source.kind == "wheel" else build_wheel(path, aside, source, settings_of(item))


def mounted_wheel(source: Local, directory: str, aside: Path) -> Path:
    """Make a wheel that holds no sources but says where they will be mounted (a path file, as the site module reads)."""
    module = source.name.replace("-", "_")
    info = f"{module}-{source.version}.dist-info"
    members = {
        f"_mounted_{module}.pth": f"{directory}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {source.name}\nVersion: {source.version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: greenroom\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [f"{name},sha256={_digest(text)},{len(text.encode())}\n" for name, text in members.items()]
    members[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"])
    wheel = aside / f"{module}-{source.version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in members.items():
            archive.writestr(zipfile.ZipInfo(name, date_time=EPOCH_IN_ZIP), text)
    return wheel


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir()
    entries = []
    part = json.loads((args.plan / "project.json").read_text())
    limit_age(part["exclude_newer"])
    try:
        for item in part["sources"]:
            source = Local(**{key: item[key] for key in ("name", "version", "path", "kind", "sha256")})
            with tempfile.TemporaryDirectory() as aside:
                wheel = wheel_of(source, item, args.source, Path(aside))
                shutil.copyfile(wheel, args.out / wheel.name)
            entries.append({"name": source.name, "version": source.version, "wheel": wheel.name, "sets": item["sets"]})
    except GreenroomError as error:
        print(f"greenroom: {error}", file=sys.stderr)
        return error.exit_code
    (args.out / "slot.json").write_text(json.dumps(entries, indent=1, sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
