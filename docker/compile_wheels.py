"""Compile what a source-built stage needs: /plan/part.json → /slot, which holds the wheels and `slot.json`.

- A wheel is compiled once for each key (see `greenroom.wheel_store`): one that the store or the cache has is copied.
- Without the digest of the environment that compiles there is no key, and everything is compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from build_wheels import build_once, build_wheel, limit_age
from fetch_wheels import CONNECTIONS, description, fetch, settings_of
from greenroom.errors import BuildError, GreenroomError
from greenroom.lock import Artifact
from greenroom.probe import probe
from greenroom.target import Target
from greenroom.wheel_store import key_of, read_entry
from network import requests_session


def check_environment(wanted: Target) -> None:
    """Check that what is compiled here works in the image.

    Raises:
        BuildError: another Python or processor, or a newer C library.
    """
    here = Target.from_probe(probe())

    def kind(target: Target) -> tuple[str, str, str]:
        return target.implementation, target.python_minor, target.machine

    if kind(here) != kind(wanted) or _numbers(here.glibc) > _numbers(wanted.glibc):
        raise BuildError(
            f"wheels that are compiled with Python {here.python} on {here.machine}, glibc {here.glibc}, do not work in an "
            f"image with Python {wanted.python} on {wanted.machine}, glibc {wanted.glibc}",
            cause="the compile image is no match for the base image",
            next_step="set compile-image under [tool.greenroom] to one of the same Python, with an equal or older glibc",
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def compiled(
    item: dict[str, Any], part: dict[str, Any], store: Path, cache: Path, environment: str
) -> tuple[Path, str]:
    """Return a compiled wheel and its key; "" when there is no key.

    Raises:
        BuildError: the source cannot be had, or does not compile.
    """
    made_from, requires = description(item, part, environment=environment)
    name = f"{made_from['name']} {made_from['version']}"
    key = key_of(made_from) if environment else ""
    if key and (store / key).is_dir():
        try:
            wheel = read_entry(store / key).wheel
        except ValueError as error:
            print(f"greenroom: {error}: compiled again", flush=True)
        else:
            print(f"greenroom: {name} is in the store of compiled wheels, nothing to compile", flush=True)
            return wheel, key
    session = requests_session(CONNECTIONS)
    artifact = Artifact(**item["artifact"])
    source = fetch(session, artifact, item["url"], cache)
    paths = [fetch(session, needed, url, cache) for needed, url in requires]
    settings = settings_of(item)
    if key and os.environ.get("REBUILD_SDISTS") != "1":
        done = cache / "compiled" / key
        if done.is_dir():
            print(f"greenroom: {name} was compiled by an earlier build, nothing to compile", flush=True)
        return build_once(done, source, artifact, settings, paths), key
    aside = Path(tempfile.mkdtemp(prefix="greenroom-compiled-"))
    return build_wheel(source, aside, artifact, settings, paths), key


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    part = json.loads((args.plan / "part.json").read_text())
    environment = os.environ.get("COMPILE_ENVIRONMENT", "")
    args.out.mkdir()
    entries = []
    try:
        if part["files"]:
            check_environment(Target(**part["target"]))
            limit_age(part["exclude_newer"])
        for number, item in enumerate(part["files"], 1):
            artifact = Artifact(**item["artifact"])
            print(f"greenroom: source {number} of {len(part['files'])}: {artifact.filename}", flush=True)
            wheel, key = compiled(item, part, args.store, args.cache, environment)
            shutil.copyfile(wheel, args.out / wheel.name)
            entry = {"name": artifact.name, "version": artifact.version, "wheel": wheel.name, "sets": item["sets"]}
            entries.append({**entry, "key": key})
    except GreenroomError as error:
        print(f"greenroom: {error}", file=sys.stderr)
        return error.exit_code
    (args.out / "slot.json").write_text(json.dumps(entries, indent=1, sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
