"""Reading uv.lock without uv gives exactly what uv itself says, for every set of two real workloads."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from greenroom.distributed.lock_reader import UnreadableLockError, locked_closure, read_lock
from greenroom.lock import read_closure, uv_lock
from greenroom.manifest import read_rows
from greenroom.ready_lock import uv_program
from greenroom.target import Target

REPO = Path(__file__).parents[2]
PROJECTS = {
    "own": (REPO, "src/greenroom/actor_environments.py"),
    "post-training": (REPO / "bench/post-training", "actor_environments.py"),
}
TARGETS = [
    Target(python="3.13.5", implementation="cpython", machine="x86_64", glibc="2.41"),
    Target(python="3.11.9", implementation="cpython", machine="x86_64", glibc="2.36"),
]


@pytest.fixture(scope="module", params=sorted(PROJECTS))
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A locked copy of a project's two files, and its manifest."""
    root, manifest = PROJECTS[request.param]
    copy = tmp_path_factory.mktemp(request.param)
    shutil.copyfile(root / "pyproject.toml", copy / "pyproject.toml")
    uv_lock(uv_program(), copy)
    return copy, root / manifest


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.python)
def test_it_agrees_with_uv(project: tuple[Path, Path], target: Target) -> None:
    root, manifest = project
    lock = read_lock(root / "uv.lock")
    combinations = {tuple(sorted(set(row.extras))) for row in read_rows(manifest)}
    assert len(combinations) > 3
    for extras in combinations:
        closure = read_closure(uv_program(), root, extras, target)
        found = locked_closure(lock, extras, target.marker_environment())
        expected = {artifact.name: artifact.version for artifact in closure.artifacts}
        assert {name: item.version for name, item in found.items()} == expected | dict(
            [closure.project] if closure.project else []
        )
        for artifact in closure.artifacts:
            assert f"sha256:{artifact.sha256}" in found[artifact.name].hashes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("version = ", "cannot be read"),
        ("version = 2", "has format 2, not 1"),
        ("", "has format None"),
    ],
)
def test_a_lock_that_is_not_understood_is_refused(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "uv.lock").write_text(text)
    with pytest.raises(UnreadableLockError, match=said):
        read_lock(tmp_path / "uv.lock")


def test_what_the_lock_lacks_is_named() -> None:
    with pytest.raises(UnreadableLockError, match="does not hold the project"):
        locked_closure({"version": 1}, [])
    project = {"name": "p", "version": "1", "source": {"virtual": "."}, "metadata": {"provides-extras": ["a"]}}
    with pytest.raises(UnreadableLockError, match="does not know the extra b"):
        locked_closure({"package": [project]}, ["a", "b"])
    needing = {**project, "dependencies": [{"name": "gone"}]}
    with pytest.raises(UnreadableLockError, match="0 candidates for gone"):
        locked_closure({"package": [needing]}, [])
    assert locked_closure({"package": [project]}, ["a"]) == {}


GROUPS = {
    "nothing said": "",
    "none": "default-groups = []",
    "another": 'default-groups = ["extra-tools"]',
    "all": 'default-groups = "all"',
}


@pytest.mark.parametrize("said", sorted(GROUPS))
def test_default_dependency_groups_are_those_of_uv(said: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        f"""
[project]
name = "grouped"
version = "1.0"
requires-python = ">=3.11"
dependencies = ["six==1.17.0"]
[dependency-groups]
dev = ["idna==3.10"]
extra-tools = ["certifi==2026.4.22", {{ include-group = "more" }}]
more = ["attrs==25.4.0"]
[tool.uv]
package = false
{GROUPS[said]}
exclude-newer = "2026-11-25T00:00:00Z"
"""
    )
    uv_lock(uv_program(), tmp_path)
    expected = {item.name: item.version for item in read_closure(uv_program(), tmp_path, [], TARGETS[0]).artifacts}
    found = locked_closure(read_lock(tmp_path / "uv.lock"), [], TARGETS[0].marker_environment())
    assert {name: item.version for name, item in found.items()} == expected
    assert ("idna" in expected) == (said in ("nothing said", "all")) and "six" in expected


def test_what_comes_from_elsewhere_than_an_index_is_known_by_its_source() -> None:
    project = {"name": "p", "version": "1", "source": {"virtual": "."}, "dependencies": [{"name": "tool"}]}
    tool = {"name": "tool", "version": "1", "source": {"git": "address?rev=main#0123"}}
    (found,) = locked_closure({"package": [project, tool]}, []).values()
    assert found.hashes == frozenset() and "#0123" in found.source
