"""What every measure shares: the laboratory, the projects, images that several of them need, and their outcome."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import workload
from builds import OURS, Build, build, plan_of
from greenroom.build import copy_pipeline
from greenroom.console import say
from greenroom.engine import Engine
from greenroom.lock import Artifact
from greenroom.slots import slot_of
from lab import Lab, Unavailable, has_image
from results import Value


@dataclass
class Outcome:
    """What a measure found: figures, and every number behind them."""

    figures: dict[str, Value] = field(default_factory=dict)
    raw: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Bump:
    """The workload with one package's locked version changed.

    Attributes:
        project: the changed copy.
        before: the package's file before.
        after: and after.
    """

    project: Path
    before: Artifact
    after: Artifact

    def to_json(self) -> dict[str, Any]:
        """Return what was bumped, and the slot whose layer that changes."""
        return {
            "package": self.after.name,
            "from": self.before.version,
            "to": self.after.version,
            "wheel_bytes": self.after.size,
            "slot": slot_of(self.after),
        }


@dataclass
class Bench:
    """One run.

    Attributes:
        lab: its engines.
        repeats: repetitions whose median counts.
        largest_scale: where the scale series ends.
        small: on a few actors only, to try the bench itself; the numbers mean nothing.
        outcome: of the measure that runs now.
    """

    lab: Lab
    repeats: int
    largest_scale: int = 4
    small: bool = False
    outcome: Outcome = field(default_factory=Outcome)
    _bump: Bump | None = None
    _context: Path | None = None

    @property
    def engine(self) -> Engine:
        """The engine that everything is built on."""
        return self.lab.engine()

    @property
    def scratch(self) -> Path:
        """A directory for large files that are removed at once."""
        path = self.lab.directory / "scratch"
        path.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def context(self) -> Path:
        """The pipeline's own files as they were at the first build, so that an edit meanwhile changes no later one."""
        if self._context is None:
            path = self.lab.directory / "pipeline"
            shutil.rmtree(path, ignore_errors=True)
            copy_pipeline(path)
            self._context = path
        return self._context

    def project(self, name: str) -> Path:
        """Return the directory of a project of that name."""
        return self.lab.directory / "projects" / name

    def workload(self) -> Path:
        """Return the workload, locked."""
        return workload.post_training(self.project("small" if self.small else "post-training"), small=self.small)

    def bumped(self) -> Bump:
        """Return the workload with one small package at its previous release, nothing else changed.

        Raises:
            Unavailable: every candidate's previous release changes something else as well.
        """
        if self._bump is None:
            self._bump = self._find_bump()
        return self._bump

    def _find_bump(self) -> Bump:
        base = self.workload()
        before = plan_of(self.engine, base).plan
        for name in workload.BUMP_CANDIDATES:
            version = workload.locked_version(before, name)
            if version is None:
                continue
            project = workload.constrain(base, self.project("bumped"), [f"{name}<{version}"])
            old, new = workload.changed_artifacts(before, plan_of(self.engine, project).plan)
            if len(old) == len(new) == 1:
                return Bump(project=project, before=old[0], after=new[0])
            say(f"bench: {name}: {len(old)} files would change, so another package is bumped")
        raise Unavailable("no small package could be bumped alone")

    def image(self, side: str, variant: str = "base", *, bytecode: bool = False) -> str:
        """Return the tag of an image, built when it is not there yet.

        Args:
            side: "ours" or a baseline.
            variant: "base" or "bumped".
            bytecode: with bytecode; ours only.
        """
        tag = tag_of(side, variant, bytecode=bytecode)
        if not has_image(self.engine, tag):
            project = self.bumped().project if variant == "bumped" else self.workload()
            self.build(side, project, tag, bytecode=bytecode)
        return tag

    def build(
        self,
        side: str,
        project: Path,
        tag: str,
        *,
        bytecode: bool = False,
        no_cache: bool = False,
        engine: Engine | None = None,
    ) -> Build:
        """Build and say how long it took."""
        done = build(
            engine or self.engine, side, project, tag, context=self.context, bytecode=bytecode, no_cache=no_cache
        )
        say(
            f"bench: {tag}: {done.seconds:.1f} s"
            + (f", planned in {done.planning_seconds:.1f} s" if side == OURS else "")
        )
        return done


def tag_of(side: str, variant: str, *, bytecode: bool = False) -> str:
    """Return the tag of an image of this bench."""
    return f"greenroom-bench:{side}-{variant}{'-bytecode' if bytecode else ''}"


def median(values: Iterable[float]) -> float:
    """Return the median, rounded for the file."""
    return round(statistics.median(values), 3)


def ratio(numerator: float, denominator: float) -> float:
    """Return a ratio, rounded for the file."""
    return round(numerator / denominator, 4)
