"""Plans, reports and variants as people and machines read them. Everything here goes to stdout: it is data."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from greenroom.estimate import estimate
from greenroom.plan import Plan
from greenroom.smoke import SmokeReport
from greenroom.verify import Report

_PIPED_WIDTH = 200
"""Columns of a table that does not go to a terminal."""


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPED_WIDTH)


def plan_json(plan: Plan, driver_actors: Sequence[str]) -> dict[str, object]:
    """Return a plan for machines: its content, its digest, each set's closure, an estimate, and the driver's actors."""
    return {
        **dataclasses.asdict(plan),
        "digest": plan.digest,
        "closures": {environment_set.name: plan.closure(environment_set.name) for environment_set in plan.sets},
        "driver_actors": list(driver_actors),
        "estimate": estimate(plan).to_json(),
    }


def print_plan(plan: Plan, driver_actors: Sequence[str]) -> None:
    """Print a row for every actor, in or out and why, the totals, and what an image takes."""
    console = _console()
    table = Table(box=None, pad_edge=False)
    for column in ("actor", "", "why", "stage", "environment set", "distributions"):
        table.add_column(column, overflow="fold", no_wrap=False)
    size_of = {environment_set.name: str(len(plan.closure(environment_set.name))) for environment_set in plan.sets}
    for actor in plan.actors:
        state = "in" if actor.included else "out"
        size = size_of.get(actor.environment_set, "") if actor.included else ""
        table.add_row(actor.fqn, state, escape(actor.reason), actor.stage, actor.environment_set, size)
    for fqn in driver_actors:
        table.add_row(fqn, "out", "runs in the driver's interpreter", "", "", "")
    console.print(table)
    console.print(
        f"{len(plan.included)} venvs in {len(plan.sets)} sets; {len(plan.artifacts)} files; "
        f"CPython {plan.target.python} {plan.target.machine}; {plan.digest}"
    )
    console.print(estimate(plan).one_line(), markup=False, soft_wrap=True)


def print_report(report: Report) -> None:
    """Print a row for every venv, every difference, and how many checks passed and failed."""
    console = _console()
    table = Table(box=None, pad_edge=False)
    table.add_column("venv", overflow="fold")
    table.add_column("")
    for fqn, checks in sorted(report.venvs.items()):
        failed = [check for check, value in checks.items() if value != "ok"]
        table.add_row(fqn, f"[red]differs: {', '.join(failed)}[/red]" if failed else "[green]ok[/green]")
    console.print(table)
    for item in report.differences:
        where = f"{item.venv}: " if item.venv else ""
        console.print(f"{item.check}: {where}{item.what}", markup=False, soft_wrap=True)
    console.print(f"{report.passed} passed, {len(report.differences)} failed")


def print_smoke(report: SmokeReport) -> None:
    """Print a row for every environment, every problem, and how many environments answered."""
    console = _console()
    table = Table(box=None, pad_edge=False)
    for column in ("environment", "venv", "seconds", ""):
        table.add_column(column, overflow="fold")
    for row in report.environments:
        state = "[red]failed[/red]" if row["problem"] else "left out" if "left_out" in row else "[green]ok[/green]"
        table.add_row(row["environment"], escape(str(row.get("venv", ""))), str(row.get("seconds", "")), state)
    console.print(table)
    for problem in report.problems:
        console.print(problem, markup=False, soft_wrap=True)
    answered = sum(not row["problem"] and "left_out" not in row for row in report.environments)
    console.print(f"{answered} environments answered, {len(report.problems)} problems")


def print_json(value: object) -> None:
    """Print a JSON value."""
    print(json.dumps(value, indent=1))


def print_matrix(variants: Mapping[str, Sequence[str]], form: str) -> None:
    """Print the matrix of a CI as one line: a list of variants, or an object for `strategy.matrix`.

    Args:
        variants: name → extras to skip.
        form: "json" or "github".
    """
    rows = [{"variant": name, "skip": " ".join(skips)} for name, skips in variants.items()]
    value = {"include": rows} if form == "github" else rows
    line = json.dumps(value, separators=(",", ":"))
    print(line)
