"""The figures, their goals, and how a run's results are written and shown."""

from __future__ import annotations

import json
import operator
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from greenroom.build import source_revision
from greenroom.files import write_aside

SCHEMA = 1
Value = float | bool | None


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure.

    Attributes:
        name: its key in the JSON file.
        group: what is measured together with it.
        says: what it is, in a few words.
        relation: "<=", ">=" or "==" to its goal.
        goal: the goal.
    """

    name: str
    group: str
    says: str
    relation: str
    goal: float | bool

    def reached(self, value: Value) -> bool | None:
        """Return whether a value reaches the goal; None when it was not measured."""
        relations: dict[str, Callable[[Any, Any], bool]] = {"<=": operator.le, ">=": operator.ge, "==": operator.eq}
        return None if value is None else relations[self.relation](value, self.goal)


def _figure(name: str, group: str, relation: str, goal: float | bool, says: str) -> Figure:
    return Figure(name=name, group=group, says=says, relation=relation, goal=goal)


FIGURES = (
    _figure("cold_ratio", "rebuild", "<=", 0.8, "cold build / one-layer's cold build"),
    _figure("bump_ratio", "rebuild", "<=", 0.14, "rebuild after one package's bump / one-layer's"),
    _figure("bump_changed_bytes_share", "rebuild", "<=", 0.01, "layer bytes with a new digest after it / all"),
    _figure("actor_added_ratio", "rebuild", "<=", 0.2, "rebuild with one more actor / one-layer's"),
    _figure("noop_seconds", "edit", "<=", 3.0, "planning and building again, nothing changed"),
    _figure("source_edit_seconds", "edit", "<=", 5.0, "planning and building after a source edit"),
    _figure("venv_bytes_over_unique", "shape", "<=", 1.02, "venv bytes in the image / bytes of unique files"),
    _figure("entries_ratio", "shape", "<=", 0.55, "filesystem entries / one-layer's"),
    _figure("digests_equal", "digests", "==", True, "two clean builds on two engines: equal layers"),
    _figure("import_speedup", "import", ">=", 2.0, "import of the math actor without / with bytecode"),
    _figure("push_after_bump_share", "registry", "<=", 0.015, "bytes pushed after the bump / first push"),
    _figure("pull_speedup", "registry", ">=", 1.5, "one-layer's cold pull / ours"),
    _figure("squashfs_ratio", "squashfs", "<=", 1.0, "conversion to squashfs / one-layer's"),
)
SCALE, ACTORS = "scale", "actors"
"""Groups without a figure of their own: each is a series."""
GROUPS = (*dict.fromkeys(figure.group for figure in FIGURES), SCALE, ACTORS)


def groups_of(words: list[str]) -> tuple[str, ...]:
    """Return the groups to measure for figure or group names; every group for none.

    Raises:
        ValueError: a word is neither.
    """
    by_name = {figure.name: figure.group for figure in FIGURES} | {group: group for group in GROUPS}
    if unknown := [word for word in words if word not in by_name]:
        raise ValueError(f"unknown figure {unknown[0]!r}; use any of: {', '.join(by_name)}")
    chosen = {by_name[word] for word in words} or set(GROUPS)
    return tuple(group for group in GROUPS if group in chosen)


def machine() -> dict[str, Any]:
    """Return what the numbers depend on: processors, memory, load, versions, revision."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "load_average_at_start": [round(load, 2) for load in os.getloadavg()],
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "uv": version("uv"),
        "revision": source_revision(Path(__file__).parents[1]),
    }


def write(path: Path, figures: Mapping[str, Value], raw: Mapping[str, Any]) -> None:
    """Write the results; every figure has a key, null when it was not measured."""
    content = {"schema": SCHEMA, "figures": {figure.name: figures.get(figure.name) for figure in FIGURES}, "raw": raw}
    write_aside(path, json.dumps(content, indent=1) + "\n")


def table(figures: Mapping[str, Value], raw: Mapping[str, Any]) -> str:
    """Return the figures with their goals as text, and the series that were measured."""
    lines = [f"{'figure':26} {'measured':>9} {'goal':>8}       what"]
    for figure in FIGURES:
        value = figures.get(figure.name)
        shown = "-" if value is None else str(value) if isinstance(value, bool) else f"{value:.3f}"
        verdict = {True: "ok", False: "NO", None: "-"}[figure.reached(value)]
        lines.append(f"{figure.name:26} {shown:>9} {figure.relation:>3} {figure.goal!s:>5} {verdict:>3}  {figure.says}")
        reason = raw.get(figure.group, {}).get("reason")
        if value is None and reason and figure.group in raw["groups"]:
            lines.append(f"{'':26} not measured: {reason}")
    if series := raw.get(SCALE, {}).get("series"):
        lines += [
            "",
            f"{'scale':5} {'actors':>6} {'sets':>5} {'files':>6} {'unique MB':>10} {'ours s':>8} {'one-layer s':>12}",
        ]
        for point in series:
            lines.append(
                f"{point['scale']:>4}x {point['actors']:>6} {point['sets']:>5} {point['files']:>6}"
                f" {point['unique_bytes'] / 1e6:>10.0f} {point['ours_seconds']:>8.1f} {point['one_layer_seconds']:>12.1f}"
            )
    if series := raw.get(ACTORS, {}).get("series"):
        lines += ["", f"{'actors started at once':26} {'prebuilt s':>10} {'uv run s':>9} {'ratio':>6}"]
        lines += [
            f"{point['actors']:>26} {point['prebuilt_seconds']:>10.2f} {point['uv_run_seconds']:>9.2f}"
            f" {point['ratio']:>6.2f}"
            for point in series
        ]
    return "\n".join(lines)
