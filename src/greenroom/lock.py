"""The lock: what each environment set resolves to, read through uv and the standard pylock format (PEP 751)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from packaging.pylock import Package, PackageDirectory, PackageSdist, PackageWheel, Pylock, PylockSelectError
from packaging.tags import Tag

from greenroom.errors import LockError, UsageError
from greenroom.process import ProcessError, run
from greenroom.target import Target

_UV_TIMEOUT = 300.0


@dataclass(frozen=True, kw_only=True, order=True)
class Artifact:
    """A file that a locked distribution comes from.

    Attributes:
        filename: of the wheel or sdist, as the index names it.
        name: the distribution's normalised name.
        version: its version.
        sha256: the file's hash in the lock, hexadecimal.
        size: in bytes; 0 when the lock does not say.
        kind: "wheel" or "sdist".
    """

    filename: str
    name: str
    version: str
    sha256: str
    size: int
    kind: str


@dataclass(frozen=True, kw_only=True)
class Closure:
    """The exact distributions that a list of extras locks to, for one target.

    Attributes:
        artifacts: the files, sorted by filename.
        urls: filename → where to fetch it. Not part of any plan: a mirror serves the same bytes.
        project: (name, version) of the project itself when it is a package, else None.
    """

    artifacts: tuple[Artifact, ...]
    urls: dict[str, str]
    project: tuple[str, str] | None


def uv_lock(uv: str, project: Path) -> None:
    """Make or update `uv.lock`.

    Args:
        uv: the uv program.
        project: the project's directory.

    Raises:
        LockError: the requirements do not resolve, or the index does not answer.
    """
    try:
        run([uv, "lock", "--project", project], changes=True, timeout=_UV_TIMEOUT)
    except ProcessError as error:
        unsatisfiable = "unsatisfiable" in error.completed.stderr
        raise LockError(
            f"uv lock failed: {error.completed.last_lines(3)}",
            cause="extras that conflict" if unsatisfiable else "an index that does not answer",
            next_step="declare such extras in [tool.uv] conflicts of pyproject.toml"
            if unsatisfiable
            else f"uv lock --project {project}",
        ) from error


def check_lock(uv: str, project: Path) -> None:
    """Check that `uv.lock` exists and belongs to the present `pyproject.toml`; changes nothing.

    Raises:
        LockError: it is missing or stale.
    """
    if not (project / "uv.lock").is_file():
        raise LockError(
            f"no uv.lock in {project}", cause="it was never made", next_step=f"greenroom lock --project {project}"
        )
    try:
        run([uv, "lock", "--check", "--project", project], timeout=_UV_TIMEOUT)
    except ProcessError as error:
        raise LockError(
            f"uv.lock of {project.name} does not match pyproject.toml",
            cause=f"pyproject.toml was edited after the lock was made ({error.completed.last_lines(1)})",
            next_step=f"greenroom lock --project {project}, then review the change",
        ) from error


def read_closure(uv: str, project: Path, extras: Sequence[str], target: Target) -> Closure:
    """Return what some extras lock to on a target.

    Args:
        uv: the uv program.
        project: the directory of `pyproject.toml` and `uv.lock`.
        extras: normalised extras.
        target: the image's interpreter and platform.

    Returns:
        The closure.

    Raises:
        LockError: the lock has nothing for this target, or cannot be read.
        UsageError: an extra is not declared, or a source is one that cannot be installed yet.
    """
    flags = [flag for extra in extras for flag in ("--extra", extra)]
    command = [uv, "export", "--frozen", "--offline", "--quiet", "--format", "pylock.toml", *flags]
    label = "+".join(extras) or "no extras"
    try:
        # Paths in the export are relative to the working directory.
        text = run(command, cwd=project, timeout=_UV_TIMEOUT).stdout
    except ProcessError as error:
        message = error.completed.last_lines(3)
        # uv names the extras in backquotes; a path in its message may hold the word too.
        if re.search(r"\bExtras? `", message):
            raise UsageError(
                f"extras {label}: {message}",
                cause="an extra that the manifest names is not declared, or two conflict",
                next_step="compare [project.optional-dependencies] with the manifest",
            ) from error
        raise LockError(f"uv.lock cannot be read: {message}", next_step="uv lock --check") from error
    try:
        head, *blocks = text.split("\n[[packages]]\n")
        # The comments of the head name the command, which differs from set to set.
        head = "\n".join(line for line in head.splitlines() if not line.startswith("#"))
        chosen = [choice for block in blocks for choice in _select(head, block, target)]
    except PylockSelectError as error:
        raise LockError(
            f"extras {label} on CPython {target.python} {target.machine}: {error}",
            cause="the lock was made for other Pythons or platforms",
            next_step="check requires-python and [tool.uv] environments, or choose another --base-image",
        ) from error
    _refuse_ambiguity(label, [package.name for package, _ in chosen])
    artifacts: list[Artifact] = []
    urls: dict[str, str] = {}
    own: tuple[str, str] | None = None
    for package, source in chosen:
        if isinstance(source, PackageDirectory) and source.path in {".", "./"}:
            own = (package.name, _project_version(package, project))
            continue
        artifact, url = _artifact(package, source)
        artifacts.append(artifact)
        urls[artifact.filename] = url
    return Closure(artifacts=tuple(sorted(artifacts)), urls=urls, project=own)


@lru_cache(maxsize=4096)
def _select(head: str, block: str, target: Target) -> tuple[tuple[Package, object], ...]:
    """Return what one package entry of a pylock file gives on a target: one choice, or none by its marker.

    Sets share most of their packages, and parsing is what planning costs: each entry is parsed once, not once
    per set. Entries are independent of each other but for the ban on two of one name (`_refuse_ambiguity`).
    """
    pylock = Pylock.from_dict(tomllib.loads(f"{head}\n[[packages]]\n{block}"))
    return tuple(pylock.select(environment=target.marker_environment(), tags=_tags(target)))  # type: ignore[arg-type]


@lru_cache(maxsize=8)
def _tags(target: Target) -> tuple[Tag, ...]:
    return tuple(target.tags())


def _refuse_ambiguity(label: str, names: Sequence[str]) -> None:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise LockError(
            f"extras {label}: the lock has two versions of {', '.join(twice)} for one target",
            cause="extras that conflict without a [tool.uv] conflicts entry",
            next_step="uv lock --check",
        )


def _artifact(package: Package, source: object) -> tuple[Artifact, str]:
    if not isinstance(source, PackageWheel | PackageSdist) or not source.url:
        kind = type(source).__name__.removeprefix("Package").lower()
        raise UsageError(
            f"{package.name} is locked to a {kind} source, which cannot be baked into an image yet",
            cause="only wheels and sdists from an index or a URL are supported",
            next_step=f"give {package.name} a release on an index",
        )
    sha256 = source.hashes.get("sha256")
    if not sha256:
        raise LockError(
            f"the lock has no sha256 of {source.filename}",
            cause="the index does not publish it",
            next_step=f"use an index that publishes hashes for {package.name}",
        )
    artifact = Artifact(
        filename=source.filename,
        name=package.name,
        version=str(package.version),
        sha256=sha256,
        size=source.size or 0,
        kind="wheel" if isinstance(source, PackageWheel) else "sdist",
    )
    return artifact, source.url


def _project_version(package: Package, project: Path) -> str:
    if package.version is not None:
        return str(package.version)
    metadata = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
    if "version" not in metadata:
        raise UsageError(
            f"{package.name} computes its version when it is built (dynamic)",
            cause="an image's closure must be known before it is built",
            next_step="give [project] a static version, or set [tool.uv] package = false",
        )
    return str(metadata["version"])
