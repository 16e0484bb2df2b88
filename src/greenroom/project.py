"""A project's settings: `[tool.greenroom]` in its `pyproject.toml`."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.utils import canonicalize_name

from greenroom.errors import UsageError
from greenroom.stamps import DEFAULT_VENV_DIR
from greenroom.target import BOOTSTRAP_PYTHON

DEFAULT_BASE_IMAGE = "bootstrap:trixie"
DEFAULT_COMPILE_IMAGE = "bootstrap:trixie+compilers"
_KNOWN_SETTINGS = {
    "manifest",
    "closures",
    "base-image",
    "compile-image",
    "venv-dir",
    "matrix",
    "mounted",
    "python",
    "source-built",
    "tag",
}
_TABLES = {"matrix", "mounted", "source-built"}


@dataclass(frozen=True, kw_only=True)
class Project:
    """A project and its settings.

    Attributes:
        root: the directory of `pyproject.toml`.
        name: its distribution's normalised name.
        version: its version, "" when it computes one.
        is_package: whether the project itself is installed into the venvs.
        manifest: the manifest script.
        closures: the committed listing of reviewed closures, or None.
        base_image: the default base image.
        python: the version of the base image's CPython, as planning takes it where no base image can be asked.
        compile_image: where source-built stages compile; nothing of it but wheels gets into the image.
        venv_dir: where venvs live in the image.
        tag: the default image tag.
        matrix: variant name → extras it skips, in declared order.
    """

    root: Path
    name: str
    version: str
    is_package: bool
    manifest: Path
    closures: Path | None
    base_image: str = DEFAULT_BASE_IMAGE
    python: str = BOOTSTRAP_PYTHON
    compile_image: str = DEFAULT_COMPILE_IMAGE
    venv_dir: str = DEFAULT_VENV_DIR
    tag: str = ""
    matrix: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def manifest_in_context(self) -> str:
        """The manifest's path relative to the root, as the Dockerfile wants it."""
        return self.manifest.relative_to(self.root).as_posix()


def load_project(root: Path, *, manifest: str | None = None) -> Project:
    """Read a project's settings.

    Args:
        root: the directory of `pyproject.toml`.
        manifest: path of the manifest relative to it; overrides the setting.

    Returns:
        The project.

    Raises:
        UsageError: there is no `pyproject.toml`, it is malformed, a setting is unknown or of the wrong kind, or no
            manifest is found.
    """
    root = root.resolve()
    try:
        data: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"no pyproject.toml in {root}", next_step="pass --project DIR") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"pyproject.toml of {root.name}: {error}", next_step="uv lock --check") from error
    metadata = data.get("project", {})
    settings = data.get("tool", {}).get("greenroom", {})
    if not isinstance(settings, dict):
        raise UsageError("[tool.greenroom] is not a table", next_step="see README: Use it in your own repository")
    if unknown := sorted(set(settings) - _KNOWN_SETTINGS):
        raise UsageError(
            f"unknown setting in [tool.greenroom]: {', '.join(unknown)}",
            next_step=f"use one of: {', '.join(sorted(_KNOWN_SETTINGS))}",
        )
    for key in _KNOWN_SETTINGS - _TABLES:
        if not isinstance(settings.get(key, ""), str):
            raise UsageError(f"[tool.greenroom] {key} must be a string")
    name = canonicalize_name(str(metadata.get("name", root.name)))
    venv_dir = settings.get("venv-dir", DEFAULT_VENV_DIR)
    parts = PurePosixPath(venv_dir).parts
    if not PurePosixPath(venv_dir).is_absolute() or len(parts) < 3 or ".." in parts:
        raise UsageError(f"[tool.greenroom] venv-dir {venv_dir!r} is not an absolute path of two parts or more")
    python = settings.get("python", BOOTSTRAP_PYTHON)
    if not re.fullmatch(r"3\.\d+\.\d+", python):
        raise UsageError(
            f"[tool.greenroom] python {python!r} is no version of three numbers", next_step='as in "3.12.12"'
        )
    closures = settings.get("closures")
    return Project(
        root=root,
        name=name,
        version=str(metadata.get("version", "")),
        is_package=_is_package(data),
        manifest=_find_manifest(root, manifest or settings.get("manifest")),
        closures=root / closures if closures else None,
        base_image=settings.get("base-image", DEFAULT_BASE_IMAGE),
        python=python,
        compile_image=settings.get("compile-image", DEFAULT_COMPILE_IMAGE),
        venv_dir=venv_dir,
        tag=settings.get("tag", f"{name}:latest"),
        matrix=_matrix(settings.get("matrix", {})),
    )


def _is_package(data: dict[str, Any]) -> bool:
    """Say whether uv installs the project itself: by `[tool.uv] package`, else by whether it has a build system."""
    return bool(data.get("tool", {}).get("uv", {}).get("package", "build-system" in data))


def _find_manifest(root: Path, given: str | None) -> Path:
    if given:
        path = (root / given).resolve()
        if not path.is_file() or root not in path.parents:
            raise UsageError(
                f"no manifest at {given} in {root}", next_step="correct --manifest or [tool.greenroom] manifest"
            )
        return path
    found = sorted(root.glob("actor_environments.py")) + sorted(root.glob("src/*/actor_environments.py"))
    if len(found) != 1:
        raise UsageError(
            f"{len(found)} manifests named actor_environments.py found in {root}",
            next_step='set manifest = "path" under [tool.greenroom] in pyproject.toml, or pass --manifest',
        )
    return found[0]


def _matrix(table: object) -> dict[str, tuple[str, ...]]:
    if not isinstance(table, dict):
        raise UsageError("[tool.greenroom.matrix] must be a table: variant = [extras to skip]")
    for variant, skips in table.items():
        if not isinstance(skips, list) or not all(isinstance(skip, str) for skip in skips):
            raise UsageError(f"[tool.greenroom.matrix] {variant} must be a list of extras to skip")
    return {str(variant): tuple(canonicalize_name(skip) for skip in skips) for variant, skips in table.items()}
