"""Fetch the files of some slots: /plan/<slot>.json → /slots/<slot>/, which holds its wheels and its own `slot.json`.

- Files come in parallel, largest first, into the cache; each is hashed while it arrives and renamed to
  its hash only when that is the lock's. What is in the cache is hashed again before it is used.
- Sdists are built to wheels with a fixed SOURCE_DATE_EPOCH; from there on they are wheels.
- Nothing but the slot directory decides what the slot's layer contains; no address is in it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests

from build_wheels import build_once, limit_age
from greenroom.errors import BuildError, GreenroomError
from greenroom.git_sources import parse
from greenroom.lock import Artifact
from greenroom.source_builds import BuildSettings
from greenroom.target import Target
from greenroom.wheel_store import describe, key_of
from network import requests_session
from venv_tree import EPOCH

CONNECTIONS = 4
"""Files in flight at once; several steps fetch at the same time."""
ATTEMPTS = 4
GIT_SOURCES = Path("/git")
"""Where the host's copies of git repositories are mounted."""
BACKOFF = 1.0
"""Seconds before the second attempt; doubled before each further one."""


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
    if artifact.kind == "git":
        return unpacked_repository(artifact, url)
    target = cache / artifact.kind / artifact.sha256 / artifact.filename
    if target.is_file():
        # Whoever builds on this builder can write to the cache, and a machine that lost its power may have half a file.
        with target.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == artifact.sha256:
                return target
        print(f"greenroom: {artifact.filename} in the cache is not what the lock says: fetched again", flush=True)
        target.unlink(missing_ok=True)
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


def unpacked_repository(artifact: Artifact, url: str) -> Path:
    """Unpack a git source that the host has fetched; return the distribution's directory.

    Raises:
        BuildError: the host has not given it to the build.
    """
    packed = GIT_SOURCES / f"{artifact.filename}.tar"
    if not packed.is_file():
        raise BuildError(
            f"{artifact.name} {artifact.version} comes from a git repository, and the build was not given it",
            cause="git sources are fetched on the host, where keys and credentials are",
            next_step="greenroom sources DIR, then --build-context git-sources=DIR",
        )
    # Always the same path: compilers write it into files.
    tree = Path(tempfile.gettempdir(), "greenroom-git", artifact.filename)
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    try:
        with tarfile.open(packed) as archive:
            archive.extractall(tree, filter="data")
    except tarfile.TarError as error:
        raise BuildError(
            f"the repository of {artifact.name} {artifact.version} cannot be unpacked: {error}",
            cause="it holds a link to an absolute path, or one that leads out of it",
            next_step="take a release of it from an index",
        ) from error
    for path in sorted(tree.rglob("*"), reverse=True):
        # Some build backends put the files' own times into the wheel.
        os.utime(path, (EPOCH, EPOCH), follow_symlinks=False)
    if not (directory := tree / parse(url).subdirectory).is_dir():
        raise BuildError(
            f"the repository of {artifact.name} {artifact.version} has no directory {parse(url).subdirectory}",
            cause="[tool.uv.sources] names another commit's",
            next_step="correct it, then uv lock",
        )
    return directory


def _download(session: requests.Session, artifact: Artifact, url: str, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    # Steps and builds that run at once share the cache, and each counts its processes from 1: no process id here.
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    aside = Path(name)
    digest = hashlib.sha256()
    # The file's own bytes: some servers call a .tar.gz an encoded .tar, which would be decoded on the way.
    plain = {"Accept-Encoding": "identity"}
    try:
        with os.fdopen(handle, "wb") as file, session.get(url, stream=True, headers=plain, timeout=(20, 60)) as answer:
            answer.raise_for_status()
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


def wheel_of(session: requests.Session, item: dict[str, Any], source: Path, part: dict[str, Any], cache: Path) -> Path:
    """Return the wheel of a fetched source, built once for each interpreter, platform and way of building.

    Args:
        session: an HTTP session.
        item: the source's entry in a part of the plan.
        source: the fetched file.
        part: that part.
        cache: the cache directory.

    Raises:
        BuildError: the build failed; its last lines are in the message.
    """
    made_from, requires = description(item, part, environment="")
    done = cache / "built" / key_of(made_from)
    if os.environ.get("REBUILD_SDISTS") == "1":
        # A second build that is to show whether the first can be repeated; beside what other builds may be using.
        done = Path(tempfile.mkdtemp(prefix="greenroom-again-")) / done.name
    paths = [fetch(session, needed, url, cache) for needed, url in requires]
    return build_once(done, source, Artifact(**item["artifact"]), settings_of(item), paths)


def settings_of(item: dict[str, Any]) -> BuildSettings:
    """Return how a source is built, from its entry in a part of the plan."""
    data = item["settings"]
    return BuildSettings(
        variables=tuple((name, value) for name, value in data["variables"]),
        config_settings=tuple((name, value) for name, value in data["config_settings"]),
        requirements=tuple(data["requirements"]),
        isolated=data["isolated"],
    )


def description(
    item: dict[str, Any], part: dict[str, Any], *, environment: str
) -> tuple[dict[str, Any], list[tuple[Artifact, str]]]:
    """Return all that decides what a source's wheel is, and the files of its build environment with their addresses."""
    requires = [(Artifact(**needed["artifact"]), needed["url"]) for needed in item["requires"]]
    made_from = describe(
        Artifact(**item["artifact"]),
        settings_of(item),
        requires=[artifact for artifact, _ in requires],
        exclude_newer=part["exclude_newer"],
        target=Target(**part["target"]),
        uv=part["uv"],
        environment=environment,
    )
    return made_from, requires


def fetch_slots(parts: dict[str, dict[str, Any]], cache: Path, out: Path) -> None:
    """Fetch the files of several slots, build their sdists, and write the slot directories.

    Args:
        parts: slot → its part of the plan, as `make_plan.slot_parts` gives it.
        cache: the cache directory.
        out: receives one directory per slot.

    Raises:
        BuildError: a file cannot be had, has other bytes than the lock says, or cannot be built.
    """
    entries: dict[str, list[dict[str, Any]]] = {slot: [] for slot in parts}
    for slot in parts:
        (out / slot).mkdir(parents=True)
    files = [(slot, Artifact(**item["artifact"]), item) for slot, part in parts.items() for item in part["files"]]
    # Largest first; what has no size in the lock may be the largest.
    files.sort(key=lambda file: (-(file[1].size or float("inf")), file[1].filename))
    total = sum(artifact.size for _, artifact, _ in files)
    done_bytes = 0
    session = requests_session(CONNECTIONS)
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        fetched = pool.map(lambda file: fetch(session, file[1], file[2]["url"], cache), files)
        for (slot, artifact, item), path in zip(files, fetched, strict=True):
            done_bytes += artifact.size
            print(f"greenroom: fetched {artifact.filename}, {done_bytes} of {total} bytes", flush=True)
            wheel = path if artifact.kind == "wheel" else wheel_of(session, item, path, parts[slot], cache)
            # A cache mount is another file system: what the layer keeps is copied out of it.
            shutil.copyfile(wheel, out / slot / wheel.name)
            entry = {"name": artifact.name, "version": artifact.version, "wheel": wheel.name, "sets": item["sets"]}
            entries[slot].append(entry)
    for slot, listed in entries.items():
        listed.sort(key=lambda entry: str(entry["wheel"]))
        (out / slot / "slot.json").write_text(json.dumps(listed, indent=1, sort_keys=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    try:
        parts = {path.stem: json.loads(path.read_text()) for path in sorted(args.plan.glob("*.json"))}
        limit_age(next((part["exclude_newer"] for part in parts.values() if "exclude_newer" in part), ""))
        fetch_slots(parts, args.cache, args.out)
    except GreenroomError as error:
        print(f"greenroom: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
