"""The lock: what each environment set resolves to, read through uv and the standard pylock format (PEP 751)."""

from __future__ import annotations

import hashlib
import posixpath
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.pylock import (
    Package,
    PackageArchive,
    PackageDirectory,
    PackageSdist,
    PackageVcs,
    PackageWheel,
    Pylock,
    PylockSelectError,
)
from packaging.tags import Tag

from greenroom.errors import LockError, UsageError
from greenroom.process import ProcessError, run
from greenroom.target import Target

_UV_TIMEOUT = 300.0


@dataclass(frozen=True, kw_only=True, order=True)
class Artifact:
    """A file that a locked distribution comes from.

    Attributes:
        filename: of the wheel or sdist, as the index names it; for a git repository a name of our own.
        name: the distribution's normalised name.
        version: its version.
        sha256: the file's hash in the lock, hexadecimal; for a git repository the commit, and "#" and the directory in it.
        size: in bytes; 0 when the lock does not say.
        kind: "wheel", "sdist" or "git".
    """

    filename: str
    name: str
    version: str
    sha256: str
    size: int
    kind: str

    @property
    def identity(self) -> str:
        """What it is in a closure: its version and what names its content."""
        return f"{self.version} {'git' if self.kind == 'git' else 'sha256'}:{self.sha256}"


@dataclass(frozen=True, kw_only=True, order=True)
class Local:
    """A distribution that lies in the project's directory, the project itself aside.

    Attributes:
        name: the distribution's normalised name.
        version: its version.
        path: relative to the project's directory.
        kind: "directory", "wheel" or "sdist".
        sha256: the hash of its file, hexadecimal; "" for a directory, whose content may change without the lock.
    """

    name: str
    version: str
    path: str
    kind: str
    sha256: str

    @property
    def identity(self) -> str:
        """What it is in a closure: its version, and what names its content where the lock does."""
        return f"{self.version} sha256:{self.sha256}" if self.sha256 else self.version


@dataclass(frozen=True, kw_only=True)
class Closure:
    """The exact distributions that a list of extras locks to, for one target.

    Attributes:
        artifacts: the files, sorted by filename.
        urls: filename → where to fetch it. Not part of any plan: a mirror serves the same bytes.
        project: (name, version) of the project itself when it is a package, else None.
        locals: what lies in the project's directory, sorted by name.
    """

    artifacts: tuple[Artifact, ...]
    urls: dict[str, str]
    project: tuple[str, str] | None
    locals: tuple[Local, ...] = ()


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


def read_closure(
    uv: str,
    project: Path,
    extras: Sequence[str],
    target: Target,
    wants_source: Callable[[str], bool] = lambda name: False,
) -> Closure:
    """Return what some extras lock to on a target.

    Args:
        uv: the uv program.
        project: the directory of `pyproject.toml` and `uv.lock`.
        extras: normalised extras.
        target: the image's interpreter and platform.
        wants_source: says whether a distribution is built from source although a wheel fits.

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
    local: list[Local] = []
    for package, source in chosen:
        if isinstance(source, PackageDirectory) and source.path in {".", "./"}:
            own = (package.name, _project_version(package, project))
            continue
        if isinstance(source, PackageWheel) and wants_source(package.name):
            source = _sdist(package)
        if not isinstance(source, PackageVcs) and getattr(source, "path", None):
            local.append(_local(package, source, project))
            continue
        artifact, url = _artifact(package, source)
        artifacts.append(artifact)
        urls[artifact.filename] = url
    return Closure(artifacts=tuple(sorted(artifacts)), urls=urls, project=own, locals=tuple(sorted(local)))


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


def _sdist(package: Package) -> PackageSdist:
    if package.sdist is None:
        raise UsageError(
            f"{package.name} {package.version} cannot be built from source: the lock has wheels of it only",
            cause="it publishes no sdist",
            next_step=f"take {package.name} out of [tool.greenroom.source-built] and no-binary-package",
        )
    return package.sdist


def _artifact(package: Package, source: object) -> tuple[Artifact, str]:
    if isinstance(source, PackageVcs):
        return _repository(package, source)
    if not isinstance(source, PackageWheel | PackageSdist | PackageArchive) or not source.url:
        kind = type(source).__name__.removeprefix("Package").lower()
        raise UsageError(
            f"{package.name} is locked to a {kind} source, which cannot be baked into an image",
            cause="only files of an index or an address, git repositories and paths in the project are supported",
            next_step=f"give {package.name} a release on an index",
        )
    if getattr(source, "subdirectory", None):
        raise UsageError(
            f"{package.name} lies in a directory of an archive, which cannot be baked into an image",
            cause="its source in [tool.uv.sources] has a subdirectory",
            next_step=f"take {package.name} from its git repository, or give it a release on an index",
        )
    artifact = Artifact(
        filename=_filename(source),
        name=package.name,
        version=_version(package),
        sha256=_sha256(package, source),
        size=source.size or 0,
        kind=_kind(_filename(source)),
    )
    return artifact, source.url


def _repository(package: Package, source: PackageVcs) -> tuple[Artifact, str]:
    if source.type != "git" or not source.url:
        raise UsageError(
            f"{package.name} is locked to a {source.type} repository, which cannot be baked into an image",
            cause="only git repositories with an address are supported",
            next_step=f"give {package.name} a release on an index",
        )
    directory = posixpath.normpath(source.subdirectory) if source.subdirectory else ""
    if directory.startswith(("..", "/")):
        raise UsageError(f"{package.name} lies at {directory}, outside of its repository")
    # One commit may hold several distributions, and two of one name.
    place = f"-{hashlib.sha256(directory.encode()).hexdigest()[:8]}" if directory else ""
    artifact = Artifact(
        filename=f"{package.name}-{_version(package)}-{source.commit_id[:12]}{place}.git",
        name=package.name,
        version=_version(package),
        sha256=source.commit_id + (f"#{directory}" if directory else ""),
        size=0,
        kind="git",
    )
    # As pip writes it: the repository, the commit, the directory in it.
    fragment = f"#subdirectory={directory}" if directory else ""
    return artifact, f"git+{source.url}@{source.commit_id}{fragment}"


def _local(package: Package, source: Any, project: Path) -> Local:
    path = PurePosixPath(posixpath.normpath(source.path))
    if path.is_absolute() or path.parts[0] == "..":
        raise UsageError(
            f"{package.name} lies at {path}, outside of the project's directory, which is all that a build sees",
            cause="[tool.uv.sources] names a path outside of the project",
            next_step=f"move {package.name} into the project, or give it a release on an index",
        )
    if isinstance(source, PackageDirectory):
        return Local(
            name=package.name,
            version=_directory_version(package, project),
            path=str(PurePosixPath(path, source.subdirectory or "")),
            kind="directory",
            sha256="",
        )
    return Local(
        name=package.name,
        version=_version(package),
        path=str(path),
        kind=_kind(path.name),
        sha256=_sha256(package, source),
    )


def _filename(source: PackageWheel | PackageSdist | PackageArchive) -> str:
    if isinstance(source, PackageArchive):
        return unquote(urlsplit(source.url or "").path.rsplit("/", 1)[-1])
    return source.filename


def _kind(filename: str) -> str:
    return "wheel" if filename.endswith(".whl") else "sdist"


def _sha256(package: Package, source: PackageWheel | PackageSdist | PackageArchive) -> str:
    if sha256 := source.hashes.get("sha256"):
        return str(sha256)
    raise LockError(
        f"the lock has no sha256 of a file of {package.name} {package.version}",
        cause="the index does not publish it",
        next_step=f"use an index that publishes hashes for {package.name}",
    )


def _version(package: Package) -> str:
    if package.version is None:
        raise _dynamic(package.name)
    return str(package.version)


def _directory_version(package: Package, project: Path) -> str:
    """Return the version of a distribution in a directory; the export leaves it out, the lock has it unless it is dynamic."""
    if package.version is not None:
        return str(package.version)
    lock = project / "uv.lock"
    path = posixpath.normpath(package.directory.path) if package.directory else "."
    version = local_versions(lock, lock.stat().st_mtime_ns).get((package.name, path))
    if version is None:
        raise _dynamic(package.name)
    return version


@lru_cache(maxsize=8)
def local_versions(lock: Path, changed: int) -> dict[tuple[str, str], str | None]:
    """Return what a lock takes from the project's directory, the project included: (name, path) → version, if it has one.

    Args:
        lock: the file.
        changed: when it was changed last; another lock is read again.
    """
    found: dict[tuple[str, str], str | None] = {}
    for package in tomllib.loads(lock.read_text(encoding="utf-8")).get("package", []):
        source = package.get("source", {})
        for kind in ("editable", "directory", "virtual", "path"):
            if kind in source:
                found[package["name"], posixpath.normpath(source[kind])] = package.get("version")
    return found


def _dynamic(name: str) -> UsageError:
    return UsageError(
        f"{name} computes its version when it is built (dynamic)",
        cause="an image's closure must be known before it is built",
        next_step=f"give [project] of {name} a static version, or set [tool.uv] package = false",
    )


def _project_version(package: Package, project: Path) -> str:
    if package.version is not None:
        return str(package.version)
    metadata = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
    if "version" not in metadata:
        raise _dynamic(package.name)
    return str(metadata["version"])
