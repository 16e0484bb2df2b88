"""Plans: content only, the same for the same content, and nothing else accepted back."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenroom.errors import BuildError, UsageError
from greenroom.lock import Artifact, Closure, Local
from greenroom.manifest import Row
from greenroom.plan import Plan, PlannedLocal, check_wrapper_names, expected_stamp, make_plan
from greenroom.source_builds import BuildSettings, SourceBuild, SourceBuildRules
from greenroom.stamps import set_name
from greenroom.target import Target

MakePlan = Callable[..., Plan]
TARGET = Target(python="3.13.5", implementation="cpython", machine="x86_64", glibc="2.41")


def test_a_plan_holds_the_selected_rows_and_says_why(make_sample_plan: MakePlan) -> None:
    plan = make_sample_plan()
    assert [(actor.class_name, actor.included, actor.reason) for actor in plan.actors] == [
        ("Alpha", True, "needs one"),
        ("Beta", True, "needs one"),
        ("Delta", False, "skips heavy"),
        ("Gamma", True, "needs two + one"),
    ]
    assert [actor.fqn for actor in plan.included] == ["job.workers.Alpha", "job.workers.Beta", "job.workers.Gamma"]
    assert [(item.name, item.extras) for item in plan.sets] == [("one", ("one",)), ("one+two", ("one", "two"))]
    assert [artifact.name for artifact in plan.artifacts] == ["base", "one", "two"]
    assert plan.closure("one+two") == {"base": "1.0", "one": "1.0", "two": "1.0"}
    assert plan.closure("one") == {"base": "1.0", "one": "1.0"}
    with pytest.raises(KeyError):
        plan.set_of("heavy")


# Each: the row's stage and extras, whether it is selected, the stage asked for, the skips, the reason.
REASONS: list[tuple[str, tuple[str, ...], bool, str, tuple[str, ...], str]] = [
    ("deps", ("a", "b"), True, "all", (), "needs a + b"),
    ("deps", (), True, "all", (), "needs a venv without extras"),
    ("deps", ("a", "b"), False, "all", ("b",), "skips b"),
    ("deps", ("a", "b"), False, "all", ("a", "b", "c"), "skips a, b"),
    ("late", ("a",), False, "deps", ("a",), "skips a"),
    ("late", ("a",), False, "deps", ("b",), "stage late, not deps"),
    ("late", ("a",), False, "late", (), "the manifest leaves it out"),
    ("late", ("a",), False, "all", (), "the manifest leaves it out"),
]


@pytest.mark.parametrize(("stage", "extras", "selected", "asked", "skip", "reason"), REASONS)
def test_reasons(
    stage: str, extras: tuple[str, ...], selected: bool, asked: str, skip: tuple[str, ...], reason: str
) -> None:
    row = Row(fqn="a.B", stage=stage, extras=extras)
    closures = {set_name(extras): Closure(artifacts=(), urls={}, project=None)}
    plan = make_plan(
        rows=[row], selected=[row] if selected else [], closures=closures, target=TARGET, stage=asked, skip=skip
    )
    assert [(actor.included, actor.reason) for actor in plan.actors] == [(selected, reason)]
    assert len(plan.sets) == int(selected)


SET_NAMES = [
    ([], "@base"),
    (["a"], "a"),
    (["b", "a"], "a+b"),
    (["a", "b", "a"], "a+b"),
]


@pytest.mark.parametrize(("extras", "name"), SET_NAMES)
def test_set_names(extras: list[str], name: str) -> None:
    assert set_name(extras) == name


EXTRAS = ["a", "b", "c", "d"]
ROWS = st.lists(
    st.builds(
        Row,
        fqn=st.from_regex(r"[a-z]{1,3}\.[A-Z][a-z]{0,2}", fullmatch=True),
        stage=st.sampled_from(["deps", "late"]),
        extras=st.lists(st.sampled_from(EXTRAS), max_size=3, unique=True).map(tuple),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda row: row.fqn,
)


def closures_of(rows: list[Row], make_artifact: Callable[..., Artifact], prefix: str = "one") -> dict[str, Closure]:
    """Return a closure for every set of some rows: a distribution of each extra's name, and one that all share."""
    closures = {}
    for row in rows:
        artifacts = sorted(make_artifact(name) for name in {*row.extras, "shared"})
        urls = {artifact.filename: f"{prefix}/{artifact.filename}" for artifact in artifacts}
        closures[set_name(row.extras)] = Closure(artifacts=tuple(artifacts), urls=urls, project=("job", "1"))
    return closures


@given(rows=ROWS, seed=st.integers(0, 1000))
def test_the_digest_depends_on_content_only(make_artifact: Callable[..., Artifact], rows: list[Row], seed: int) -> None:
    selected = [row for row in rows if row.stage == "deps"]
    closures = closures_of(rows, make_artifact)
    common: dict[str, Any] = {"target": TARGET, "stage": "deps", "skip": ("x",)}
    first = make_plan(rows=rows, selected=selected, closures=closures, **common)
    shuffled = random.Random(seed)
    again = make_plan(
        rows=shuffled.sample(rows, len(rows)),
        selected=shuffled.sample(selected, len(selected)),
        closures=dict(shuffled.sample(list(closures_of(rows, make_artifact, "another").items()), len(closures))),
        **common,
    )
    assert again == first
    assert again.to_json() == first.to_json()
    assert again.digest == first.digest


MEMBER = Local(name="member", version="1", path="libs/member", kind="directory", sha256="")


def changed_plans() -> dict[str, Callable[[Plan], Plan]]:
    def exchange(**changes: Any) -> Callable[[Plan], Plan]:
        return lambda plan: dataclasses.replace(plan, **changes)

    def first(field: str, **changes: Any) -> Callable[[Plan], Plan]:
        def change(plan: Plan) -> Plan:
            items = getattr(plan, field)
            exchanged: dict[str, Any] = {field: (dataclasses.replace(items[0], **changes), *items[1:])}
            return dataclasses.replace(plan, **exchanged)

        return change

    return {
        "stage": exchange(stage="deps"),
        "skip": exchange(skip=()),
        "project": exchange(project=("job", "1")),
        "Python": exchange(target=dataclasses.replace(TARGET, python="3.13.6")),
        "C library": exchange(target=dataclasses.replace(TARGET, glibc="2.40")),
        "processor": exchange(target=dataclasses.replace(TARGET, machine="aarch64")),
        "actor's name": first("actors", fqn="a.B"),
        "actor's stage": first("actors", stage="late"),
        "actor's extras": first("actors", extras=("other",)),
        "actor left out": first("actors", included=False),
        "set's name": first("sets", name="other"),
        "set's files": first("sets", files=()),
        "file's hash": first("artifacts", sha256="0" * 64),
        "file's version": first("artifacts", version="1.0.post1"),
        "file's name": first("artifacts", filename="base-1.0-cp313-none-any.whl"),
        "file's size": first("artifacts", size=1),
        "file's kind": first("artifacts", kind="sdist"),
        "no actors": exchange(actors=()),
        "source-built stages": exchange(source_stages=("late",)),
        "what is built from source": exchange(
            builds=(SourceBuild(filename="base-1.0-py3-none-any.whl", stage="", settings=BuildSettings(), requires=()),)
        ),
        "what lies in the project": exchange(locals=(PlannedLocal(source=MEMBER, mounted="", sets=("one",)),)),
    }


@pytest.mark.parametrize("change", changed_plans())
def test_any_change_of_content_changes_the_digest(make_sample_plan: MakePlan, change: str) -> None:
    plan = make_sample_plan()
    changed = changed_plans()[change](plan)
    assert changed.digest != plan.digest


def test_a_plan_holds_no_address_and_no_path(make_sample_plan: MakePlan) -> None:
    urls = {"base-1.0-py3-none-any.whl": "https://user:secret@index.example/base"}
    plan = make_sample_plan(
        rows=[Row(fqn="a.B", stage="deps", extras=())],
        selected=[Row(fqn="a.B", stage="deps", extras=())],
        closures={"@base": Closure(artifacts=(), urls=urls, project=None)},
    )
    assert "example" not in plan.to_json()
    assert "/" not in plan.to_json()


def test_two_versions_of_the_project_are_refused(make_artifact: Callable[..., Artifact]) -> None:
    rows = [Row(fqn="a.B", stage="deps", extras=("x",)), Row(fqn="a.C", stage="deps", extras=("y",))]
    closures = {name: Closure(artifacts=(), urls={}, project=("job", name)) for name in ("x", "y")}
    with pytest.raises(UsageError, match="several versions"):
        make_plan(rows=rows, selected=rows, closures=closures, target=TARGET, stage="all", skip=())


def test_one_filename_for_two_files_is_refused(make_artifact: Callable[..., Artifact]) -> None:
    """Two indexes may serve files of one name: an image would hold either for both."""
    rows = [Row(fqn="a.B", stage="deps", extras=("x",)), Row(fqn="a.C", stage="deps", extras=("y",))]
    closures = {
        name: Closure(artifacts=(make_artifact("torch", content=name),), urls={}, project=None) for name in ("x", "y")
    }
    with pytest.raises(UsageError, match=r"torch-1\.0-py3-none-any\.whl"):
        make_plan(rows=rows, selected=rows, closures=closures, target=TARGET, stage="all", skip=())


def test_a_stamp_names_how_sources_are_built_and_where_they_are_mounted(make_sample_plan: MakePlan) -> None:
    plan = make_sample_plan()
    assert "builds" not in expected_stamp(plan, "one", uv_version="0")
    settings = BuildSettings(variables=(("CFLAGS", "-O1"),))
    build = SourceBuild(filename="base-1.0-py3-none-any.whl", stage="", settings=settings, requires=())
    usual = dataclasses.replace(build, settings=BuildSettings())
    member = PlannedLocal(source=MEMBER, mounted="", sets=("one",))
    changed = dataclasses.replace(plan, builds=(build,), locals=(member,))
    stamp = expected_stamp(changed, "one", uv_version="0")
    assert list(cast(dict[str, str], stamp["builds"])) == ["base"]
    assert cast(dict[str, str], stamp["closure"])["member"] == "1"
    assert changed.closure("one")["member"] == "1" and "member" not in changed.closure("one+two")
    assert "builds" not in expected_stamp(dataclasses.replace(plan, builds=(usual,)), "one", uv_version="0")
    mounted = dataclasses.replace(changed, locals=(dataclasses.replace(member, mounted="/src"),))
    closure = cast(dict[str, str], expected_stamp(mounted, "one", uv_version="0")["closure"])
    assert closure["member"] == "1 mounted:/src"


def test_two_classes_of_one_name_collide_in_their_wrapper(make_sample_plan: MakePlan) -> None:
    rows = [Row(fqn=f"{module}.Worker", stage="deps", extras=("one",)) for module in ("a", "b")]
    with pytest.raises(BuildError, match=r"a\.Worker and b\.Worker both want the wrapper python-Worker") as caught:
        check_wrapper_names(make_sample_plan(rows=rows, selected=rows))
    assert caught.value.exit_code == 4
    check_wrapper_names(make_sample_plan(rows=rows, selected=rows[:1]))
    check_wrapper_names(make_sample_plan())


def test_the_stamp_is_complete(make_sample_plan: MakePlan) -> None:
    plan = make_sample_plan()
    stamp = expected_stamp(plan, "one", uv_version="0.9.9")
    files = {artifact.name: artifact for artifact in plan.artifacts}
    assert stamp["closure"] == {name: f"1.0 sha256:{files[name].sha256}" for name in ("base", "one")}
    assert str(stamp.pop("closure_digest")).startswith("sha256:")
    del stamp["closure"]
    assert stamp == {
        "schema": 1,
        "set": "one",
        "extras": ["one"],
        "python": "3.13.5",
        "platform": "linux x86_64 glibc 2.41",
        "uv": "0.9.9",
        "complete": True,
    }


def test_the_stamp_tells_sets_plans_and_uvs_apart(make_sample_plan: MakePlan) -> None:
    plan = make_sample_plan()
    stamps = [
        expected_stamp(plan, "one", uv_version="1"),
        expected_stamp(plan, "one+two", uv_version="1"),
        expected_stamp(plan, "one", uv_version="2"),
        expected_stamp(changed_plans()["file's hash"](plan), "one", uv_version="1"),
        expected_stamp(changed_plans()["project"](plan), "one", uv_version="1"),
        expected_stamp(changed_plans()["Python"](plan), "one", uv_version="1"),
    ]
    assert len({json.dumps(stamp, sort_keys=True) for stamp in stamps}) == len(stamps)


def test_the_stamp_names_the_project(make_sample_plan: MakePlan) -> None:
    plan = dataclasses.replace(make_sample_plan(), project=("My_Job", "3"))
    closure = expected_stamp(plan, "one", uv_version="1")["closure"]
    assert isinstance(closure, dict)
    assert closure["my-job"] == "3"
    assert plan.closure("one")["My_Job"] == "3"


def with_locals(make_sample_plan: MakePlan, *locals_: Local, **rules: Any) -> Plan:
    closure = Closure(artifacts=(), urls={}, project=("job", "1"), locals=locals_)
    rows = [Row(fqn="a.B", stage="deps", extras=())]
    return make_sample_plan(
        rows=rows, selected=rows, closures={"@base": closure}, skip=(), rules=SourceBuildRules(**rules)
    )


def test_two_sources_of_one_name_and_version_are_refused(make_sample_plan: MakePlan) -> None:
    """They make one wheel, and either would be installed for both."""
    other = dataclasses.replace(MEMBER, path="other/member")
    with pytest.raises(UsageError, match=r"member 1 lies at libs/member and at other/member"):
        with_locals(make_sample_plan, MEMBER, other)
    newer = dataclasses.replace(other, version="2")
    assert len(with_locals(make_sample_plan, MEMBER, newer).locals) == 2


def test_where_the_project_is_mounted_is_in_the_plan_and_the_stamp(make_sample_plan: MakePlan) -> None:
    plain = with_locals(make_sample_plan)
    one, two = (with_locals(make_sample_plan, mounted={"job": path}) for path in ("/w/one", "/w/two"))
    assert len({plan.digest for plan in (plain, one, two)}) == 3
    closure = cast(dict[str, str], expected_stamp(one, "@base", uv_version="0")["closure"])
    assert closure == {"job": "1 mounted:/w/one"}


@pytest.mark.parametrize("sources", [(), (MEMBER,)], ids=["the project", "in it"])
def test_what_lies_in_the_project_cannot_see_its_venv(make_sample_plan: MakePlan, sources: tuple[Local, ...]) -> None:
    with pytest.raises(UsageError, match="cannot be built without isolation"):
        with_locals(make_sample_plan, *sources, uv={"no-build-isolation": True})
    with_locals(make_sample_plan, uv={"no-build-isolation": True}, mounted={"job": "/w"})
