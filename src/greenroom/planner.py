"""Planning a project: run its manifest, read its lock, make the plan. The same on the host and in the build."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from greenroom.errors import UsageError
from greenroom.lock import Closure, local_versions, read_closure
from greenroom.manifest import Row, known_extras, normalise_skips, read_rows
from greenroom.plan import Plan, make_plan
from greenroom.source_builds import SourceBuildRules, check_mounted, read_rules
from greenroom.stamps import set_name
from greenroom.target import Target


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A plan, and where its files are fetched from.

    Attributes:
        plan: the plan.
        urls: filename → address, from the lock; never part of the plan or the image.
        rules: what the project says about building from source.
    """

    plan: Plan
    urls: dict[str, str]
    rules: SourceBuildRules


def select_rows(manifest: Path, *, stage: str, skip: Sequence[str]) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """Run a manifest for all of its rows, then once per selected stage with the skip list.

    Args:
        manifest: the script.
        stage: a stage that it knows, or "all".
        skip: skip words.

    Returns:
        Every row, and the selected rows.

    Raises:
        UsageError: an unknown stage or skip word, or a manifest that fails.
    """
    rows = read_rows(manifest)
    skip = normalise_skips(skip, known_extras(rows))
    stages = sorted({row.stage for row in rows}) if stage == "all" else [stage]
    with ThreadPoolExecutor() as pool:
        listings = pool.map(lambda name: read_rows(manifest, stage=name, skip=skip), stages)
        selected = tuple(row for listing in listings for row in listing)
    known = set(rows)
    for row in selected:
        if row not in known:
            raise UsageError(f"{manifest.name} lists {row.fqn} for stage {row.stage} but not, or differently, for all")
    if not rows:
        raise UsageError(f"{manifest.name} lists no actor", next_step=f"python3 {manifest} all")
    wanted = {row for row in rows if row.stage in stages and not set(row.extras) & set(skip)}
    for row in sorted(wanted ^ set(selected), key=lambda row: row.fqn):
        raise UsageError(
            f"{manifest.name} {'leaves out' if row in wanted else 'lists'} {row.fqn}"
            f" for stage {stage} and skip {', '.join(skip) or 'nothing'}",
            cause="it does not heed the stage and the skip words of its command line",
            next_step=f"python3 {manifest} {' '.join([stage, *skip])}",
        )
    return rows, selected


def plan_project(*, uv: str, project: Path, manifest: Path, stage: str, skip: Sequence[str], target: Target) -> Planned:
    """Plan a project.

    Args:
        uv: the uv program.
        project: the directory of `pyproject.toml` and `uv.lock`; the lock is used as it stands.
        manifest: the manifest script.
        stage: a stage, or "all".
        skip: skip words.
        target: the image's interpreter and platform.

    Returns:
        The plan with its addresses.

    Raises:
        UsageError: the manifest, a stage, an extra or a skip word is wrong.
        LockError: the lock has nothing for a set on this target.
    """
    rows, selected = select_rows(manifest, stage=stage, skip=skip)
    rules = read_rules(project / "pyproject.toml")
    if rules.mounted:
        lock = project / "uv.lock"
        check_mounted(rules, {name for name, _ in local_versions(lock, lock.stat().st_mtime_ns)})
    extras_of = {set_name(row.extras): sorted(set(row.extras)) for row in selected}
    with ThreadPoolExecutor() as pool:
        read = pool.map(
            lambda name: (name, read_closure(uv, project, extras_of[name], target, rules.wants_source)),
            sorted(extras_of),
        )
        closures: dict[str, Closure] = dict(read)
    plan = make_plan(
        rows=rows,
        selected=selected,
        closures=closures,
        target=target,
        stage=stage,
        skip=normalise_skips(skip, known_extras(rows)),
        rules=rules,
    )
    urls = {name: url for closure in closures.values() for name, url in closure.urls.items()}
    return Planned(plan=plan, urls=urls, rules=rules)
