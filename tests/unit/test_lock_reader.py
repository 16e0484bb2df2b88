"""Reading uv.lock without uv gives exactly what uv itself says, for every set of two real workloads."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from greenroom.distributed.lock_reader import UnreadableLockError, locked_closure, read_lock
from greenroom.lock import read_closure, uv_lock
from greenroom.manifest import read_rows
from greenroom.pipeline import uv_program
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
