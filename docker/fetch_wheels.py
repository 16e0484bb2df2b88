"""Fetch every file of the plan and sort the wheels into their slots: /plan → /slots/<number>/.

- Files come in parallel, largest first, into the cache; each is hashed while it arrives and renamed to
  its hash only when that is the lock's. What is in the cache under its hash is used as it is.
- Sdists are built to wheels in isolation with a fixed SOURCE_DATE_EPOCH; from there on they are wheels.
- A slot directory holds its wheels and `slot.json`: nothing else decides what its layer contains.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import requests

from greenroom.errors import BuildError, GreenroomError
from greenroom.lock import Artifact
from greenroom.plan import Plan, plan_from_json
from greenroom.process import ProcessError, run
from greenroom.slots import assign
from network import index_environment, requests_session

CONNECTIONS = 8
"""Files in flight at once; more gave nothing on two cores."""
ATTEMPTS = 4
BACKOFF = 1.0
"""Seconds before the second attempt; doubled before each further one."""
SOURCE_DATE_EPOCH = "315532800"
"""1980-01-01, the earliest time that a zip file can hold."""
BUILD_TIMEOUT = 1800.0


def fetch(session: requests.Session, artifact: Artifact, url: str, cache: Path) -> Path:
    """Bring a file into the cache.

    Args:
        session: an HTTP session.
        artifact: the file.
        url: its address.
        cache: the cache directory.

    Returns:
        Its path in the cache, whose content has the lock's hash.

    Raises:
        BuildError: its bytes differ from the lock, or it cannot be had after several attempts.
    """
    target = cache / artifact.kind / artifact.sha256 / artifact.filename
    if target.is_file():
        return target
    host = urlsplit(url).hostname or url
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(BACKOFF * 2 ** (attempt - 1))
        try:
            return _download(session, artifact, url, target)
        except (requests.RequestException, OSError) as error:
            print(
                f"greenroom: {artifact.filename} from {host}: attempt {attempt + 1} of {ATTEMPTS}: {error}", flush=True
            )
            last = error
    raise BuildError(
        f"{artifact.filename} cannot be fetched from {host}: {last}",
        cause="the index does not answer, or refuses these credentials",
        next_step="try again; credentials go into ~/.netrc",
    )


def _download(session: requests.Session, artifact: Artifact, url: str, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    digest = hashlib.sha256()
    try:
        with session.get(url, stream=True, timeout=(20, 60)) as answer:
            answer.raise_for_status()
            with aside.open("wb") as file:
                for chunk in answer.iter_content(1 << 20):
                    digest.update(chunk)
                    file.write(chunk)
        if digest.hexdigest() != artifact.sha256:
            if artifact.size and aside.stat().st_size < artifact.size:
                raise OSError(f"{aside.stat().st_size} of {artifact.size} bytes arrived")
            raise BuildError(
                f"{artifact.filename}: sha256 is {digest.hexdigest()}, the lock says {artifact.sha256}",
                cause="the index serves another file than the one that was locked",
                next_step="find out why before you run uv lock again",
            )
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)
    return target


def build_sdist(artifact: Artifact, sdist: Path, plan: Plan, cache: Path) -> Path:
    """Build an sdist to a wheel, once for each interpreter and platform.

    Returns:
        The wheel's path in the cache.

    Raises:
        BuildError: the build failed; its last lines are in the message.
    """
    key = f"{artifact.sha256}-cp{plan.target.python_minor}-{plan.target.machine}-glibc{plan.target.glibc}"
    done = cache / "built" / key
    if not done.is_dir():
        aside = cache / "building" / f"{key}.{os.getpid()}"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        print(f"greenroom: build {artifact.filename}", flush=True)
        build_wheel(sdist, aside, name=artifact.name)
        done.parent.mkdir(exist_ok=True)
        aside.rename(done)
    (wheel,) = done.glob("*.whl")
    return wheel


def build_wheel(source: Path, out: Path, *, name: str) -> None:
    """Build the wheel of an sdist or a source tree in isolation.

    Args:
        source: the sdist's file or the source tree.
        out: the directory that receives the wheel and nothing else.
        name: the distribution, for the message.

    Raises:
        BuildError: the build failed.
    """
    uv = str(Path(sys.executable).with_name("uv"))
    env = {**index_environment(os.environ), "SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH, "UV_PYTHON_DOWNLOADS": "never"}
    command: list[str | Path] = [
        uv,
        "build",
        "--wheel",
        "--quiet",
        "--no-create-gitignore",
        "--python",
        sys.executable,
        "--out-dir",
        out,
        source,
    ]
    try:
        run(command, cwd=out, env=env, timeout=BUILD_TIMEOUT)
    except ProcessError as error:
        raise BuildError(
            f"{name} cannot be built from {source.name}: {error.completed.last_lines()}",
            cause="its build needs something that the base image lacks",
            next_step=f"find a release of {name} with a wheel, or a base image with its build tools",
        ) from error


def fill_slots(plan: Plan, files: Mapping[str, Path], out: Path) -> None:
    """Write the slot directories: hardlinks are not possible out of a cache mount, so wheels are copied."""
    users: dict[str, list[str]] = {}
    for environment_set in plan.sets:
        for filename in environment_set.files:
            users.setdefault(filename, []).append(environment_set.name)
    for number, artifacts in enumerate(assign(plan.artifacts)):
        slot = out / f"{number:02d}"
        slot.mkdir(parents=True)
        entries = []
        for artifact in artifacts:
            wheel = files[artifact.filename]
            shutil.copyfile(wheel, slot / wheel.name)
            entries.append(
                {
                    "name": artifact.name,
                    "version": artifact.version,
                    "wheel": wheel.name,
                    "sets": users[artifact.filename],
                }
            )
        (slot / "slot.json").write_text(json.dumps(entries, indent=1, sort_keys=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    plan = plan_from_json((args.plan / "plan.json").read_text())
    urls = json.loads((args.plan / "urls.json").read_text())
    total = sum(artifact.size for artifact in plan.artifacts)
    session = requests_session(CONNECTIONS)
    files: dict[str, Path] = {}
    done_bytes = 0
    try:
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            largest_first = sorted(plan.artifacts, key=lambda artifact: (-artifact.size, artifact.filename))
            fetched = pool.map(lambda item: fetch(session, item, urls[item.filename], args.cache), largest_first)
            for artifact, path in zip(largest_first, fetched, strict=True):
                files[artifact.filename] = path
                done_bytes += artifact.size
                print(f"greenroom: fetched {len(files)} of {len(urls)}, {done_bytes} of {total} bytes", flush=True)
        for artifact in plan.artifacts:
            if artifact.kind == "sdist":
                files[artifact.filename] = build_sdist(artifact, files[artifact.filename], plan, args.cache)
        fill_slots(plan, files, args.out)
    except GreenroomError as error:
        print(f"greenroom: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
