"""The comparison of an image with its plan: nothing for a right image, exactly what is wrong for any other."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from greenroom.plan import Plan, expected_stamp
from greenroom.verify import CHECKS, IMAGE_CHECKS, Report, compare

DIR = "/opt/ray_venvs"
ALPHA, BETA, GAMMA = "job.workers.Alpha", "job.workers.Beta", "job.workers.Gamma"
DELTA = "job.workers.Delta"
UV = "0.9.9"

Found = dict[str, Any]
Expected = list[tuple[str, str, str]]


def right(plan: Plan) -> Found:
    """Return what the inspector finds in an image that is exactly a plan."""
    venvs, wrappers = {}, {}
    for actor in plan.included:
        closure = plan.closure(actor.environment_set)
        venvs[actor.fqn] = {
            "real": f"{DIR}/.sets/{actor.environment_set}",
            "stamp": expected_stamp(plan, actor.environment_set, uv_version=UV),
            "interpreter": {
                "version": plan.target.python,
                "prefix": f"{DIR}/{actor.fqn}",
                "program": "/usr/bin/python3.13",
                "sees_system": False,
                "distributions": [list(item) for item in closure.items()],
            },
            "faults": [],
        }
        wrappers[f"python-{actor.class_name}"] = f'#!/bin/sh\nexec "{DIR}/{actor.fqn}/bin/python" "$@"\n'
    names = sorted(venvs)
    return {
        "uid": 65532,
        "python": "/usr/bin/python3.13",
        "variables": ["PATH"],
        "exists": True,
        "entries": [".sets", *names],
        "kinds": {".sets": "directory", **dict.fromkeys(names, "link")},
        "sets": [item.name for item in plan.sets],
        "venvs": venvs,
        "bad_links": [],
        "leftovers": [],
        "unreadable": ["/root"],
        "wrappers": wrappers,
    }


def verified(plan: Plan, found: Found) -> Report:
    # What an inspector prints went through JSON.
    return compare(plan, json.loads(json.dumps(found)), image="job:1", venv_dir=DIR, uv_version=UV)


def test_a_right_image_has_no_difference(make_sample_plan: Callable[..., Plan]) -> None:
    plan = make_sample_plan()
    report = verified(plan, right(plan))
    assert report.differences == ()
    assert report.ok
    assert report.passed == 3 * (len(CHECKS) - len(IMAGE_CHECKS)) + len(IMAGE_CHECKS)
    assert report.plan_digest == plan.digest


@pytest.mark.parametrize("prefix", [f"{DIR}/{ALPHA}", f"{DIR}/.sets/one"])
def test_what_may_differ(make_sample_plan: Callable[..., Plan], prefix: str) -> None:
    plan = make_sample_plan()
    found = right(plan)
    alpha = found["venvs"][ALPHA]["interpreter"]
    alpha["prefix"] = prefix
    alpha["distributions"] = [["BASE", "1.0.0"], ["One", "1"]]
    found["wrappers"]["python-config"] = "#!/bin/sh\necho --includes\n"
    assert verified(plan, found).ok


def alpha(change: Callable[[dict[str, Any]], object]) -> Callable[[Found], object]:
    return lambda found: change(found["venvs"][ALPHA])


def distributions(change: Callable[[list[list[str]]], object]) -> Callable[[Found], object]:
    return alpha(lambda venv: change(venv["interpreter"]["distributions"]))


def stamp(**changes: object) -> Callable[[Found], object]:
    return alpha(lambda venv: venv["stamp"].update(changes))


def without_venv(found: Found) -> None:
    found["entries"].remove(ALPHA)
    del found["kinds"][ALPHA], found["venvs"][ALPHA]


def with_entry(name: str, kind: str) -> Callable[[Found], object]:
    def change(found: Found) -> None:
        found["entries"].append(name)
        found["kinds"][name] = kind

    return change


def dangling_venv(found: Found) -> None:
    del found["venvs"][ALPHA]
    found["bad_links"].append({"path": f"{DIR}/{ALPHA}", "to": ".sets/gone", "why": "dangles"})


def without_directory(found: Found) -> None:
    found.update(exists=False, entries=[], kinds={}, sets=[], venvs={}, wrappers={})


TAMPERINGS: dict[str, tuple[Callable[[Found], object], Expected]] = {
    "a venv is missing": (without_venv, [("venv-set", ALPHA, f"{DIR}/{ALPHA} is missing")]),
    "a venv's link dangles": (
        dangling_venv,
        [
            ("links", ALPHA, f"{DIR}/{ALPHA} -> .sets/gone dangles"),
            ("venv-set", ALPHA, f"{DIR}/{ALPHA} is not a directory or leads nowhere"),
        ],
    ),
    "a venv of a skipped actor": (
        with_entry(DELTA, "directory"),
        [("venv-set", "", f"unexpected venv {DIR}/{DELTA} (was left out: skips heavy)")],
    ),
    "wrong files": (
        alpha(lambda venv: venv["faults"].extend(["a is missing", "b is missing", "c is missing", "d is missing"])),
        [("files", ALPHA, "a is missing; b is missing; c is missing and 1 more")],
    ),
    "a venv of nobody": (
        with_entry("job.Other", "link"),
        [("venv-set", "", f"unexpected venv {DIR}/job.Other (no actor of the plan)")],
    ),
    "a file among the venvs": (
        with_entry("notes.txt", "file"),
        [("venv-set", "", f"unexpected file {DIR}/notes.txt (no actor of the plan)")],
    ),
    "a set of nobody": (
        lambda found: found["sets"].append("heavy"),
        [("venv-set", "", f"unexpected {DIR}/.sets/heavy (no set of the plan)")],
    ),
    "a set is missing": (
        lambda found: found["sets"].remove("one"),
        [("venv-set", "", f"{DIR}/.sets/one is missing")],
    ),
    "a venv of another set": (
        alpha(lambda venv: venv.update(real=f"{DIR}/.sets/one+two")),
        [("venv-set", ALPHA, f"{DIR}/{ALPHA} is {DIR}/.sets/one+two, not {DIR}/.sets/one")],
    ),
    "no stamp": (
        alpha(lambda venv: venv.update(stamp=None)),
        [("stamp", ALPHA, "no stamp: the venv was never finished, or was changed")],
    ),
    "a stamp that is no JSON": (
        alpha(lambda venv: venv.update(stamp={"unreadable": "line 1"})),
        [("stamp", ALPHA, "the stamp cannot be read: line 1")],
    ),
    "an incomplete stamp": (
        stamp(complete=False),
        [("stamp", ALPHA, "the stamp's complete is False, expected True")],
    ),
    "a stamp of another uv": (stamp(uv="0.1"), [("stamp", ALPHA, "the stamp's uv is '0.1', expected '0.9.9'")]),
    "a stamp with other extras": (
        stamp(extras=["two"]),
        [("stamp", ALPHA, "the stamp's extras is ['two'], expected ['one']")],
    ),
    "a stamp with another closure": (stamp(closure={}), [("stamp", ALPHA, "the stamp's closure is not the lock's")]),
    "a stamp with a field more": (stamp(extra=1), [("stamp", ALPHA, "the stamp's extra is 1, expected None")]),
    "an interpreter that does not run": (
        alpha(lambda venv: venv.update(interpreter={"error": "No such file", "distributions": []})),
        [("interpreter", ALPHA, f"{DIR}/{ALPHA}/bin/python does not run: No such file")],
    ),
    "another Python": (
        alpha(lambda venv: venv["interpreter"].update(version="3.12.1")),
        [("interpreter", ALPHA, "Python is 3.12.1, expected 3.13.5")],
    ),
    "another venv's interpreter": (
        alpha(lambda venv: venv["interpreter"].update(prefix="/usr")),
        [("interpreter", ALPHA, f"sys.prefix is /usr, expected {DIR}/{ALPHA}")],
    ),
    "an empty venv": (
        distributions(lambda items: items.clear()),
        [("closure", ALPHA, "base 1.0 is not installed"), ("closure", ALPHA, "one 1.0 is not installed")],
    ),
    "a distribution more": (
        distributions(lambda items: items.append(["Extra_Thing", "3"])),
        [("closure", ALPHA, "extra-thing 3 is installed and not in the lock's closure")],
    ),
    "a distribution less": (
        distributions(lambda items: items.pop()),
        [("closure", ALPHA, "one 1.0 is not installed")],
    ),
    "another version": (
        distributions(lambda items: items[1].__setitem__(1, "1.0.post1")),
        [("closure", ALPHA, "one is 1.0.post1, expected 1.0")],
    ),
    "a version that is none": (
        distributions(lambda items: items[1].__setitem__(1, "unknown")),
        [("closure", ALPHA, "one is unknown, expected 1.0")],
    ),
    "a distribution twice": (
        distributions(lambda items: items.append(["ONE", "2.0"])),
        [("closure", ALPHA, "one is installed 2 times: 1.0, 2.0; expected 1.0 once")],
    ),
    "no wrapper": (
        lambda found: found["wrappers"].pop("python-Alpha"),
        [("wrapper", ALPHA, "/usr/local/bin/python-Alpha is missing")],
    ),
    "a wrapper of another venv": (
        lambda found: found["wrappers"].update({"python-Alpha": found["wrappers"]["python-Beta"]}),
        [("wrapper", ALPHA, f"/usr/local/bin/python-Alpha does not run {ALPHA}")],
    ),
    "a wrapper that names its venv in a remark only": (
        lambda found: found["wrappers"].update({"python-Alpha": f"#!/bin/sh\n# {DIR}/{ALPHA}/bin/python\nexec python"}),
        [("wrapper", ALPHA, f"/usr/local/bin/python-Alpha does not run {ALPHA}")],
    ),
    "a wrapper that cannot be run": (
        lambda found: found["wrappers"].update({"python-Alpha": "not executable"}),
        [("wrapper", ALPHA, f"/usr/local/bin/python-Alpha does not run {ALPHA}")],
    ),
    "a wrapper of nobody": (
        lambda found: found["wrappers"].update({"python-Delta": f'#!/bin/sh\nexec "{DIR}/{DELTA}/bin/python" "$@"\n'}),
        [("wrapper", "", "/usr/local/bin/python-Delta belongs to no actor of the plan")],
    ),
    "a link of a set": (
        lambda found: found["bad_links"].append(
            {"path": f"{DIR}/.sets/one+two/lib/x", "to": "/root/x", "why": "leads outside"}
        ),
        [("links", GAMMA, f"{DIR}/.sets/one+two/lib/x -> /root/x leads outside")],
    ),
    "a link of nobody": (
        lambda found: found["bad_links"].append({"path": f"{DIR}/x", "to": "y", "why": "dangles"}),
        [("links", "", f"{DIR}/x -> y dangles")],
    ),
    "a wheel left": (
        lambda found: found["leftovers"].append("/tmp/x.whl"),
        [("leftovers", "", "/tmp/x.whl is left in the image")],
    ),
    "no venv directory at all": (
        without_directory,
        [
            ("venv-set", "", f"{DIR} does not exist"),
            ("venv-set", "", f"{DIR}/.sets/one is missing"),
            ("venv-set", "", f"{DIR}/.sets/one+two is missing"),
            *[("venv-set", fqn, f"{DIR}/{fqn} is missing") for fqn in (ALPHA, BETA, GAMMA)],
            *[
                ("wrapper", fqn, f"/usr/local/bin/python-{fqn.rsplit('.', 1)[-1]} is missing")
                for fqn in (ALPHA, BETA, GAMMA)
            ],
        ],
    ),
}


@pytest.mark.parametrize("case", TAMPERINGS)
def test_each_tampering_gives_exactly_its_differences(make_sample_plan: Callable[..., Plan], case: str) -> None:
    plan = make_sample_plan()
    change, expected = TAMPERINGS[case]
    found = copy.deepcopy(right(plan))
    change(found)
    report = verified(plan, found)
    assert [(item.check, item.venv, item.what) for item in report.differences] == sorted(expected)
    assert not report.ok
    for check, venv, what in expected:
        if venv:
            assert what in report.venvs[venv][check]
    wrong = {(venv, check) for check, venv, _ in expected if venv}
    marked = {(fqn, check) for fqn, checks in report.venvs.items() for check, value in checks.items() if value != "ok"}
    assert marked == wrong


def test_every_check_has_a_tampering() -> None:
    assert {check for _, expected in TAMPERINGS.values() for check, _, _ in expected} == set(CHECKS)


def test_the_project_itself_is_part_of_the_closure(make_sample_plan: Callable[..., Plan]) -> None:
    import dataclasses

    plan = dataclasses.replace(make_sample_plan(), project=("job", "2.0"))
    found = right(plan)
    assert verified(plan, found).ok
    found["venvs"][ALPHA]["interpreter"]["distributions"].remove(["job", "2.0"])
    assert [item.what for item in verified(plan, found).differences] == ["job 2.0 is not installed"]


def test_the_report_as_json(make_sample_plan: Callable[..., Plan]) -> None:
    plan = make_sample_plan()
    found = right(plan)
    found["wrappers"].pop("python-Alpha")
    found["leftovers"].append("/x.whl")
    value = json.loads(json.dumps(verified(plan, found).to_json()))
    per_venv = sorted(set(CHECKS) - set(IMAGE_CHECKS))
    assert set(value) == {"schema", "ok", "image", "plan", "passed", "failed", "venvs", "differences"}
    assert (value["schema"], value["ok"], value["image"], value["plan"]) == (1, False, "job:1", plan.digest)
    assert (value["passed"], value["failed"]) == (3 * len(per_venv) - 1, 2)
    assert list(value["venvs"]) == [ALPHA, BETA, GAMMA]
    assert [value["venvs"][fqn]["ok"] for fqn in (ALPHA, BETA, GAMMA)] == [False, True, True]
    assert sorted(value["venvs"][ALPHA]["checks"]) == per_venv
    assert value["differences"] == [
        {"check": "leftovers", "venv": "", "what": "/x.whl is left in the image"},
        {"check": "wrapper", "venv": ALPHA, "what": "/usr/local/bin/python-Alpha is missing"},
    ]
