"""Which project, and which of its venvs: what a command was asked for, checked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from greenroom.manifest import known_extras, normalise_skips, read_rows, skips_from_environment
from greenroom.project import Project, load_project

BUILD_DIRECTORY = "build"


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which project, and which of its venvs.

    Attributes:
        project: the project.
        stage: a stage, or "all".
        skip: extras left out: those asked for and those of `SKIP_<EXTRA>_BUILD`, checked and sorted.
    """

    project: Project
    stage: str
    skip: tuple[str, ...]

    @property
    def output(self) -> Path:
        """Where this project's files go."""
        return self.project.root / BUILD_DIRECTORY


def select(
    project: str | Path = ".", *, manifest: str | None = None, stage: str = "all", skip: Sequence[str] = ()
) -> Selection:
    """Read a project's settings and check what is asked of it.

    Args:
        project: its directory.
        manifest: path of its manifest; overrides the setting.
        stage: a stage that the manifest knows, or "all".
        skip: extras to leave out.

    Returns:
        The selection, with the environment's skips.

    Raises:
        UsageError: a setting, the manifest, the stage or a skip word is wrong.
    """
    loaded = load_project(Path(project), manifest=manifest)
    known = known_extras(read_rows(loaded.manifest))
    skips = normalise_skips([*skip, *skips_from_environment(os.environ, known)], known)
    return Selection(project=loaded, stage=stage, skip=skips)
