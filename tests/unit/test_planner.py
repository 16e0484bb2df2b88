"""Planning a whole project: its manifest run per stage, its lock read once per set."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from greenroom.errors import LockError, UsageError
from greenroom.planner import plan_project, select_rows
from greenroom.target import Target

pytestmark = pytest.mark.usefixtures("own_uv")

SCRIPT = """
import sys
ROWS = [("job.A", "deps", "--extra one"), ("job.B", "deps", ""), ("job.C", "late", "--extra two --extra native"),
        ("job.D", "late", "--extra native --extra two")]
stage, skip = sys.argv[1], set(sys.argv[2:])
for fqn, own, extras in ROWS:
    if stage in ("all", own) and not skip & set(extras.split()):
        print(fqn, own, extras, sep="\\t")
"""


@pytest.fixture
def project(locked: Path, tmp_path: Path) -> Path:
    root = shutil.copytree(locked, tmp_path / "project")
    (root / "envs.py").write_text(SCRIPT)
    return root


# Each: stage, skips, the selected actors, the sets.
SELECTIONS: list[tuple[str, list[str], str, list[str]]] = [
    ("all", [], "ABCD", ["@base", "native+two", "one"]),
    ("deps", [], "AB", ["@base", "one"]),
    ("late", [], "CD", ["native+two"]),
    ("all", ["one"], "BCD", ["@base", "native+two"]),
    ("all", ["Native"], "AB", ["@base", "one"]),
    ("late", ["two"], "", []),
]


@pytest.mark.parametrize(("stage", "skip", "actors", "sets"), SELECTIONS)
def test_selections(
    project: Path, uv: str, target: Target, stage: str, skip: list[str], actors: str, sets: list[str]
) -> None:
    planned = plan_project(uv=uv, project=project, manifest=project / "envs.py", stage=stage, skip=skip, target=target)
    assert "".join(actor.class_name for actor in planned.plan.included) == actors
    assert [actor.class_name for actor in planned.plan.actors] == ["A", "B", "C", "D"]
    assert [item.name for item in planned.plan.sets] == sets
    assert set(planned.urls) == {artifact.filename for artifact in planned.plan.artifacts}
    assert all(url.startswith("http://127.0.0.1:") for url in planned.urls.values())


def test_actors_with_the_same_extras_in_another_order_share_a_set(project: Path, uv: str, target: Target) -> None:
    planned = plan_project(uv=uv, project=project, manifest=project / "envs.py", stage="late", skip=[], target=target)
    assert {actor.environment_set for actor in planned.plan.included} == {"native+two"}
    assert [actor.extras for actor in planned.plan.included] == [("two", "native"), ("native", "two")]
    assert planned.plan.closure("native+two") == {"base": "1.0", "native": "1.0", "shared": "2.0"}


def test_two_places_give_the_same_plan(project: Path, uv: str, target: Target, tmp_path: Path) -> None:
    other = shutil.copytree(project, tmp_path / "other")
    plans = [
        plan_project(uv=uv, project=root, manifest=root / "envs.py", stage="all", skip=["one"], target=target).plan
        for root in (project, other)
    ]
    assert plans[0].to_json() == plans[1].to_json()


INCONSISTENT = {
    "a row for one stage only": "print('job.A\\tdeps\\t')\nif sys.argv[1] == 'deps': print('job.B\\tdeps\\t')",
    "other extras for one stage": "print('job.A\\tdeps\\t' + ('--extra one' if sys.argv[1] == 'deps' else ''))",
}


@pytest.mark.parametrize("case", INCONSISTENT)
def test_a_manifest_that_contradicts_itself_is_refused(tmp_path: Path, case: str) -> None:
    manifest = tmp_path / "envs.py"
    manifest.write_text(f"import sys\n{INCONSISTENT[case]}\n")
    with pytest.raises(UsageError, match=r"but not, or differently, for all"):
        select_rows(manifest, stage="all", skip=[])


def test_a_set_without_a_file_for_the_target_fails_the_plan(project: Path, uv: str) -> None:
    other = Target(python="3.13.5", implementation="cpython", machine="aarch64", glibc="2.41")
    with pytest.raises(LockError, match="native"):
        plan_project(uv=uv, project=project, manifest=project / "envs.py", stage="all", skip=[], target=other)
    skipped = plan_project(
        uv=uv, project=project, manifest=project / "envs.py", stage="all", skip=["native"], target=other
    )
    assert len(skipped.plan.included) == 2


def test_an_extra_that_the_project_does_not_declare(
    write_project: Callable[..., Path], project: Path, uv: str, target: Target
) -> None:
    (project / "envs.py").write_text("print('job.A\\tdeps\\t--extra undeclared')")
    with pytest.raises(UsageError, match="undeclared"):
        plan_project(uv=uv, project=project, manifest=project / "envs.py", stage="all", skip=[], target=target)
