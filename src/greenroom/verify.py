"""Verification: what the image holds against what the manifest and the lock say now.

Nothing that the build wrote is an input to the expectation. The comparison is pure; `greenroom.container`
reads the image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from greenroom.errors import ImageDiffersError
from greenroom.image_inspector import SETS
from greenroom.plan import Plan, PlannedActor, expected_stamp

CHECKS = {
    "venv-set": "the venv directory holds exactly one venv for each actor of the plan, and nothing else",
    "stamp": "the venv carries a complete stamp, equal to the plan",
    "interpreter": "the venv's interpreter runs, from the venv's own path, in the image's Python",
    "closure": "the installed distributions are exactly the locked ones, by name and version",
    "files": "the venv's files are those that its distributions recorded, unchanged, and no others",
    "links": "no link dangles or leads outside of the venv directory",
    "wrapper": "python-<ClassName> runs the venv's interpreter",
    "leftovers": "no package cache, wheel, lock or credential file is left anywhere in the image",
}
"""Check id → what it promises."""

IMAGE_CHECKS = ("leftovers",)
"""Checks of the image as a whole; the others have one result per venv."""


_NAMED_FILES = 3
"""Wrong files of one venv that are named; the others are counted."""


@dataclass(frozen=True, kw_only=True, order=True)
class Difference:
    """Something that is not as planned.

    Attributes:
        check: its id in `CHECKS`.
        venv: the actor, or "" for the image as a whole.
        what: what was expected and what was found, in one line.
    """

    check: str
    venv: str
    what: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of a verification.

    Attributes:
        image: what was verified.
        plan_digest: of the expectation.
        passed: how many checks passed.
        differences: what is not as planned, sorted; empty when the image is right.
        venvs: actor → its check ids → "ok" or what differs.
    """

    image: str
    plan_digest: str
    passed: int
    differences: tuple[Difference, ...]
    venvs: dict[str, dict[str, str]]

    @property
    def ok(self) -> bool:
        """Whether the image is exactly what the plan says."""
        return not self.differences

    def to_json(self) -> dict[str, object]:
        """Return the report as a JSON value (schema 1)."""
        return {
            "schema": 1,
            "ok": self.ok,
            "image": self.image,
            "plan": self.plan_digest,
            "passed": self.passed,
            "failed": len(self.differences),
            "venvs": {
                fqn: {"ok": all(value == "ok" for value in checks.values()), "checks": checks}
                for fqn, checks in sorted(self.venvs.items())
            },
            "differences": [{"check": item.check, "venv": item.venv, "what": item.what} for item in self.differences],
        }


def compare(plan: Plan, found: Mapping[str, Any], *, image: str, venv_dir: str, uv_version: str) -> Report:
    """Compare what was found in an image with a plan.

    Args:
        plan: the expectation.
        found: what `greenroom.image_inspector.inspect` returned.
        image: the image's name, for the report.
        venv_dir: where its venvs live.
        uv_version: of the uv that must have installed them.

    Returns:
        The report, with every difference.
    """
    actors = {actor.fqn: actor for actor in plan.included}
    differences = set(_unplanned_entries(plan, actors, found, venv_dir))
    for fqn, actor in actors.items():
        venv = found["venvs"].get(fqn)
        if venv is None:
            kind = found["kinds"].get(fqn)
            what = (
                f"{venv_dir}/{fqn} is missing"
                if kind is None
                else f"{venv_dir}/{fqn} is not a directory or leads nowhere"
            )
            differences.add(Difference(check="venv-set", venv=fqn, what=what))
            continue
        differences.update(_venv_differences(plan, actor, venv, venv_dir, uv_version, found["python"]))
    wanted_wrappers = {f"python-{actor.class_name}": actor for actor in actors.values()}
    for name, actor in wanted_wrappers.items():
        text = found["wrappers"].get(name)
        if text is None:
            differences.add(Difference(check="wrapper", venv=actor.fqn, what=f"/usr/local/bin/{name} is missing"))
        elif text != f'#!/bin/sh\nexec "{venv_dir}/{actor.fqn}/bin/python" "$@"\n':
            what = f"/usr/local/bin/{name} does not run {actor.fqn}"
            differences.add(Difference(check="wrapper", venv=actor.fqn, what=what))
    for name in sorted(set(found["wrappers"]) - set(wanted_wrappers)):
        # Interpreters bring programs with such names, like python-config: a wrapper is what leads to a venv.
        if f"{venv_dir}/" in found["wrappers"][name]:
            what = f"/usr/local/bin/{name} belongs to no actor of the plan"
            differences.add(Difference(check="wrapper", venv="", what=what))
    for name in sorted({"PYTHONHOME", "PYTHONPATH"} & set(found["variables"])):
        what = f"the image sets {name}, which changes what every venv imports"
        differences.add(Difference(check="interpreter", venv="", what=what))
    for link in found["bad_links"]:
        owner = _owner_of(link["path"], plan, venv_dir)
        differences.add(Difference(check="links", venv=owner, what=f"{link['path']} -> {link['to']} {link['why']}"))
    for path in found["leftovers"]:
        differences.add(Difference(check="leftovers", venv="", what=f"{path} is left in the image"))
    return _report(plan, actors, differences, image)


def _unplanned_entries(
    plan: Plan, actors: Mapping[str, PlannedActor], found: Mapping[str, Any], venv_dir: str
) -> list[Difference]:
    left_out = {actor.fqn: actor.reason for actor in plan.actors if not actor.included}
    result = []
    if not found["exists"]:
        result.append(Difference(check="venv-set", venv="", what=f"{venv_dir} does not exist"))
    for name in found["entries"]:
        if name == SETS or name in actors:
            continue
        kind = found["kinds"][name]
        why = f"was left out: {left_out[name]}" if name in left_out else "no actor of the plan"
        noun = "venv" if kind in {"link", "directory"} else "file"
        result.append(Difference(check="venv-set", venv="", what=f"unexpected {noun} {venv_dir}/{name} ({why})"))
    planned = {environment_set.name for environment_set in plan.sets}
    for name in sorted(set(found["sets"]) - planned):
        result.append(
            Difference(check="venv-set", venv="", what=f"unexpected {venv_dir}/{SETS}/{name} (no set of the plan)")
        )
    for name in sorted(planned - set(found["sets"])):
        result.append(Difference(check="venv-set", venv="", what=f"{venv_dir}/{SETS}/{name} is missing"))
    return result


def _venv_differences(
    plan: Plan, actor: PlannedActor, venv: Mapping[str, Any], venv_dir: str, uv_version: str, python: str
) -> list[Difference]:
    result: list[Difference] = []

    def differs(check: str, what: str) -> None:
        result.append(Difference(check=check, venv=actor.fqn, what=what))

    real = f"{venv_dir}/{SETS}/{actor.environment_set}"
    if venv["real"] != real:
        differs("venv-set", f"{venv_dir}/{actor.fqn} is {venv['real']}, not {real}")
    wanted = expected_stamp(plan, actor.environment_set, uv_version=uv_version)
    stamp = venv["stamp"]
    if stamp is None:
        differs("stamp", "no stamp: the venv was never finished, or was changed")
    elif "unreadable" in stamp:
        differs("stamp", f"the stamp cannot be read: {stamp['unreadable']}")
    elif stamp != wanted:
        for key in sorted(set(wanted) | set(stamp)):
            expected, got = wanted.get(key), stamp.get(key)
            if expected != got and key != "closure":
                differs("stamp", f"the stamp's {key} is {got!r}, expected {expected!r}")
        if wanted["closure"] != stamp.get("closure"):
            differs("stamp", "the stamp's closure is not the lock's")
    interpreter = venv["interpreter"]
    if "error" in interpreter:
        differs("interpreter", f"{venv_dir}/{actor.fqn}/bin/python does not run: {interpreter['error']}")
        return result
    if interpreter["version"] != plan.target.python:
        differs("interpreter", f"Python is {interpreter['version']}, expected {plan.target.python}")
    if interpreter["prefix"] not in {f"{venv_dir}/{actor.fqn}", real}:
        differs("interpreter", f"sys.prefix is {interpreter['prefix']}, expected {venv_dir}/{actor.fqn}")
    if interpreter["program"] != python:
        differs("interpreter", f"bin/python is {interpreter['program']}, expected the image's {python}")
    if interpreter["sees_system"]:
        differs("interpreter", "pyvenv.cfg lets it import what is installed outside of the venv")
    for what in _closure_differences(plan.closure(actor.environment_set), interpreter["distributions"]):
        differs("closure", what)
    if faults := venv["faults"]:
        more = f" and {len(faults) - _NAMED_FILES} more" if len(faults) > _NAMED_FILES else ""
        differs("files", "; ".join(faults[:_NAMED_FILES]) + more)
    return result


def _closure_differences(closure: Mapping[str, str], distributions: list[list[str]]) -> list[str]:
    found: dict[str, list[str]] = {}
    for name, version in distributions:
        found.setdefault(canonicalize_name(name), []).append(version)
    result = []
    for name in sorted(set(closure) | set(found)):
        wanted, got = closure.get(name), found.get(name, [])
        if wanted is None:
            result.append(f"{name} {', '.join(got)} is installed and not in the lock's closure")
        elif not got:
            result.append(f"{name} {wanted} is not installed")
        elif len(got) > 1:
            result.append(f"{name} is installed {len(got)} times: {', '.join(got)}; expected {wanted} once")
        elif not _same_version(wanted, got[0]):
            result.append(f"{name} is {got[0]}, expected {wanted}")
    return result


def _same_version(wanted: str, got: str) -> bool:
    try:
        return Version(wanted) == Version(got)
    except InvalidVersion:
        return wanted == got


def _owner_of(path: str, plan: Plan, venv_dir: str) -> str:
    """Return an actor whose venv a path belongs to, or ""."""
    parts = PurePosixPath(path).relative_to(venv_dir).parts
    if parts[0] != SETS:
        return parts[0] if parts[0] in {actor.fqn for actor in plan.included} else ""
    owners = [actor.fqn for actor in plan.included if len(parts) > 1 and actor.environment_set == parts[1]]
    return owners[0] if owners else ""


def _report(plan: Plan, actors: Mapping[str, PlannedActor], differences: set[Difference], image: str) -> Report:
    per_venv = [check for check in CHECKS if check not in IMAGE_CHECKS]
    venvs = {fqn: dict.fromkeys(per_venv, "ok") for fqn in actors}
    for item in sorted(differences):
        if item.venv in venvs:
            before = venvs[item.venv][item.check]
            venvs[item.venv][item.check] = item.what if before == "ok" else f"{before}; {item.what}"
    whole = {item.check for item in differences if not item.venv}
    passed = sum(value == "ok" for checks in venvs.values() for value in checks.values())
    passed += sum(check not in whole for check in IMAGE_CHECKS)
    return Report(
        image=image, plan_digest=plan.digest, passed=passed, differences=tuple(sorted(differences)), venvs=venvs
    )


def refuse(report: Report) -> None:
    """Raise when an image is not what the plan says.

    Raises:
        ImageDiffersError: it is not; the differences are counted, and listed by `greenroom.report`.
    """
    if report.ok:
        return
    first = report.differences[0]
    more = f" and {len(report.differences) - 1} more, listed above" if len(report.differences) > 1 else ""
    raise ImageDiffersError(
        f"{report.image} differs from the plan: {first.venv + ': ' if first.venv else ''}{first.what}{more}",
        cause="it was built from another lock, manifest or skip list, or changed afterwards",
        next_step="build it again with greenroom image and the same --skip and --stage",
    )
