"""Reading an image: running a script of ours in it, as an outsider would run it."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from greenroom import image_inspector, probe
from greenroom.engine import Engine
from greenroom.errors import ImageDiffersError, UsageError
from greenroom.process import ProcessError
from greenroom.target import Target

READER_UID = "65532:65532"
"""The user that reads an image: nobody in particular, owner of nothing."""
_WORD = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?:(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*)(?::[0-9]+)?/)?{_WORD}(?:/{_WORD})*"
    r"(?::\w[\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?|sha256:[0-9a-f]{64}",
    re.ASCII,
)
READ_TIMEOUT = 900.0
_ARCHIVE_LIMIT = 1 << 30
"""Bytes of one unreadable directory that are looked through."""


def check_reference(reference: str) -> str:
    """Return an image reference or id if it is well-formed (distribution reference grammar).

    Raises:
        UsageError: it is not.
    """
    if not _REFERENCE.fullmatch(reference):
        raise UsageError(f"{reference!r} is no image reference", next_step="use name:tag, in small letters")
    return reference


def split_reference(reference: str) -> tuple[str, str]:
    """Return the name and the tag of a reference without a digest; the tag is "latest" when it has none."""
    # A colon before the last slash belongs to the registry's port.
    name, colon, tag = reference.rpartition(":")
    return (name, tag) if colon and "/" not in tag else (reference, "latest")


def run_script(engine: Engine, image: str, script: Path, *args: str) -> str:
    """Run a Python script of ours in an image: no network, read-only root, not as root.

    Args:
        engine: where the image is.
        image: its reference.
        script: a script that needs the standard library alone.
        args: its arguments.

    Returns:
        Its standard output.

    Raises:
        ImageDiffersError: the image has no python3 that runs it.
        UsageError: there is no such image.
    """
    # Imported where it is used: it takes a tenth of a second, and planning needs no engine.
    from docker.errors import ImageNotFound

    try:
        engine.client().images.get(check_reference(image))
    except ImageNotFound as error:
        raise UsageError(f"no image {image}", next_step=f"greenroom image --tag {image}, or docker pull it") from error
    command = ["run", "--rm", "--interactive", "--network", "none", "--read-only", "--user", READER_UID]
    command += ["--env", "HOME=/nonexistent", "--env", "LANG=C.UTF-8", "--env", "PYTHONDONTWRITEBYTECODE=1"]
    # What an image preloads is not to read it.
    command += ["--env", "LD_PRELOAD="]
    command += ["--workdir", "/", "--entrypoint", "python3", image, "-I", "-S", "-B", "-", *args]
    try:
        return engine.cli(*command, stdin=script.read_bytes(), timeout=READ_TIMEOUT).stdout
    except ProcessError as error:
        raise ImageDiffersError(
            f"{image} cannot be read: {error.completed.last_lines(3)}",
            cause="the image has no python3, or it does not run for a user that is not root",
            next_step=f"docker run --rm --entrypoint python3 {image} --version",
        ) from error


def image_target(engine: Engine, image: str) -> Target:
    """Return the interpreter and platform of an image.

    Raises:
        ImageDiffersError, UsageError: as `run_script`, or an interpreter that is not supported.
    """
    return Target.from_probe(json.loads(run_script(engine, image, Path(probe.__file__))))


def environment_digest(engine: Engine, image: str) -> str:
    """Return `sha256:` and the hash of what an image gives a build: its layers and its variables, and not when it was made."""
    facts = engine.client().images.get(image).attrs
    text = json.dumps([facts["RootFS"]["Layers"], facts["Config"].get("Env") or []])
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def inspect_image(engine: Engine, image: str, venv_dir: str) -> dict[str, Any]:
    """Return what an image holds: see `greenroom.image_inspector.inspect`.

    Directories that the reading user may not enter are looked through from outside, so that nothing is
    left there unseen either.
    """
    found: dict[str, Any] = json.loads(run_script(engine, image, Path(image_inspector.__file__), venv_dir))
    settings = engine.client().images.get(image).attrs["Config"].get("Env") or []
    found["variables"] = [name for name, _, value in (setting.partition("=") for setting in settings) if value]
    found["leftovers"] += _leftovers_behind(engine, image, found["unreadable"])
    return found


def _leftovers_behind(engine: Engine, image: str, directories: Iterable[str]) -> list[str]:
    directories = sorted(directories)
    if not directories:
        return []
    client = engine.client()
    container = client.containers.create(image, entrypoint=["/nonexistent"], network_mode="none")
    found: list[str] = []
    try:
        for directory in directories:
            chunks, _ = container.get_archive(directory)
            data = io.BytesIO()
            for chunk in chunks:
                data.write(chunk)
                if data.tell() > _ARCHIVE_LIMIT:
                    found.append(f"{directory} (not readable, and over {_ARCHIVE_LIMIT} bytes)")
                    break
            data.seek(0)
            with tarfile.open(fileobj=data) as archive:
                parent = directory.rsplit("/", 1)[0]
                for member in archive:
                    path = f"{parent}/{member.name}"
                    if image_inspector.is_leftover(path, member.isdir()):
                        found.append(path)
    finally:
        container.remove(force=True)
    return found
