"""How build time grows with actors and packages: the workload once, twice and four times over, side by side.

Real packages again. Generation 0 is the workload as it is; generation n is a copy of all of its actors whose direct
requirements are all older by one minor release than in generation n - 1, so that it brings distributions of its own.
What the generations share (most indirect requirements, among others) is once in the image, which is why growth is
shown against unique bytes.
"""

from __future__ import annotations

import itertools
import json
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import workload
from builds import ONE_LAYER, OURS
from greenroom.lock import uv_lock
from greenroom.ready_lock import uv_program
from harness import Bench, ratio, tag_of
from lab import forget
from layers import venv_facts

SCALES = (1, 2, 4)
Bounds = Mapping[str, SpecifierSet]
"""Package → the releases that a generation may use."""


def scale(bench: Bench) -> None:
    """Measure the series. It is not a figure with a goal: it shows whether work grows faster than content."""
    series: list[dict[str, Any]] = []
    raw = bench.outcome.raw
    scales = [factor for factor in SCALES if factor <= bench.largest_scale]
    bounds = generations(bench, max(scales))
    raw["generations"] = [{name: str(bound) for name, bound in item.items()} for item in bounds]
    for factor in scales:
        project = scaled(bench.workload(), bench.project(f"scale-{factor}"), bounds[:factor])
        tags = {side: tag_of(side, f"scale-{factor}") for side in (OURS, ONE_LAYER)}
        builds = {}
        for side, tag in tags.items():
            forget(bench.engine, [tag])
            builds[side] = bench.build(side, project, tag)
        planned = builds[OURS].plan
        assert planned is not None
        facts = {side: venv_facts(bench.engine, tag, bench.scratch) for side, tag in tags.items()}
        forget(bench.engine, list(tags.values()))
        ours, one_layer = builds[OURS].seconds, builds[ONE_LAYER].seconds
        gigabytes = facts[OURS].unique_bytes / 1e9
        series.append(
            {
                "scale": factor,
                "actors": len(planned.plan.included),
                "sets": len(planned.plan.sets),
                "files": len(planned.plan.artifacts),
                "wheel_bytes": sum(artifact.size for artifact in planned.plan.artifacts),
                "unique_bytes": facts[OURS].unique_bytes,
                "entries": {side: item.entries for side, item in facts.items()},
                "ours_seconds": round(ours, 2),
                "ours_planning_seconds": round(builds[OURS].planning_seconds, 2),
                "one_layer_seconds": round(one_layer, 2),
                "ours_seconds_per_unique_gb": ratio(ours, gigabytes),
                "one_layer_seconds_per_unique_gb": ratio(one_layer, gigabytes),
                "longest_steps": builds[OURS].to_json()["longest_steps"],
            }
        )
        raw["series"] = series


def generations(bench: Bench, count: int) -> list[Bounds]:
    """Return the bounds of each generation.

    A generation has an upper bound, and a lower one too: uv prefers versions that it has chosen for another
    generation already. A package with several versions in one generation has no lower bound.
    """
    base = bench.workload()
    direct = _direct_names(base)
    result: list[Bounds] = []
    upper: dict[str, str] = {}
    project = base
    for number in range(count):
        if number:
            constraints = [f"{name}{bound}" for name, bound in upper.items()]
            project = workload.constrain(base, bench.project(f"generation-{number}"), constraints)
        versions: dict[str, list[Version]] = {}
        for package in tomllib.loads((project / "uv.lock").read_text(encoding="utf-8"))["package"]:
            if package["name"] in direct:
                versions.setdefault(package["name"], []).append(Version(package["version"]))
        minors = {name: f"{max(found).major}.{max(found).minor}" for name, found in sorted(versions.items())}
        lower = {name: f">={minor}" for name, minor in minors.items() if len(versions[name]) == 1}
        result.append(
            {name: SpecifierSet(f"{lower.get(name, '')},{upper.get(name, '')}".strip(",")) for name in minors}
        )
        upper = {name: f"<{minor}" for name, minor in minors.items()}
    return result


def _metadata(project: Path) -> dict[str, Any]:
    data: dict[str, Any] = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    return data


def _direct_names(project: Path) -> set[str]:
    metadata = _metadata(project)["project"]
    lists = [metadata["dependencies"], *metadata["optional-dependencies"].values()]
    return {Requirement(text).name for text in itertools.chain.from_iterable(lists)}


def scaled(base: Path, directory: Path, bounds: list[Bounds]) -> Path:
    """Write and lock a project with one copy of the workload's actors for each generation.

    Each set of extras becomes one extra per generation, and all of these conflict: uv resolves each alone.
    """
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    table = workload.actors(base)
    metadata = _metadata(base)
    extras: dict[str, list[str]] = {}
    actors: dict[str, list[str] | None] = {}
    for number, bound in enumerate(bounds):
        for actor, names in table.items():
            fqn = f"{actor}G{number}"
            if names is None:
                actors[fqn] = None
                continue
            extra = "-".join(["g" + str(number), *sorted(names)]).replace("_", "-")
            actors[fqn] = [extra]
            extras[extra] = _requirements(metadata["project"], names, bound)
    (directory / "pyproject.toml").write_text(_pyproject(metadata, extras), encoding="utf-8")
    shutil.copyfile(base / workload.MANIFEST, directory / workload.MANIFEST)
    workload.write_actors(directory, actors)
    uv_lock(uv_program(), directory)
    return directory


def _requirements(project: Mapping[str, Any], names: list[str], bounds: Bounds) -> list[str]:
    by_extra = {name.replace("_", "-"): texts for name, texts in project["optional-dependencies"].items()}
    texts = [*project["dependencies"], *(text for name in names for text in by_extra[name.replace("_", "-")])]
    requirements = []
    for requirement in map(Requirement, texts):
        requirement.specifier &= bounds.get(requirement.name, SpecifierSet())
        requirements.append(str(requirement))
    return list(dict.fromkeys(requirements))


def _pyproject(base: Mapping[str, Any], extras: Mapping[str, list[str]]) -> str:
    """Return the scaled project's pyproject.toml. JSON's strings and lists are TOML's."""
    uv = base["tool"]["uv"]
    lines = ["[project]", 'name = "post-training-scaled"', 'version = "0.1.0"']
    lines += [f"requires-python = {json.dumps(base['project']['requires-python'])}", "dependencies = []", ""]
    lines += [
        "[project.optional-dependencies]",
        *(f"{name} = {json.dumps(texts)}" for name, texts in extras.items()),
        "",
    ]
    conflicts = ", ".join(f'{{ extra = "{name}" }}' for name in extras)
    lines += ["[tool.uv]", "package = false", f"exclude-newer = {json.dumps(str(uv['exclude-newer']))}"]
    lines += [f"environments = {json.dumps(uv['environments'])}", f"conflicts = [[{conflicts}]]", ""]
    lines += ["[tool.greenroom]", f'manifest = "{workload.MANIFEST}"', ""]
    return "\n".join(lines)
