"""What real locks, made by uv from an index on the loopback, give for a target."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from greenroom.errors import LockError, UsageError
from greenroom.lock import Closure, check_lock, read_closure, uv_lock
from greenroom.target import Target

pytestmark = pytest.mark.usefixtures("own_uv")

WriteProject = Callable[..., Path]


def contents(closure: Closure) -> dict[str, str]:
    return {artifact.name: artifact.version for artifact in closure.artifacts}


SETS: list[tuple[list[str], dict[str, str]]] = [
    ([], {"base": "1.0"}),
    (["empty"], {"base": "1.0"}),
    # The helper is locked for Windows, which no image runs.
    (["one"], {"base": "1.0", "needs-helper": "1.0", "shared": "1.0"}),
    (["two"], {"base": "1.0", "shared": "2.0"}),
    (["native", "two"], {"base": "1.0", "native": "1.0", "shared": "2.0"}),
    # By name and by filename these come in different orders.
    (["order"], {"base": "1.0", "base-more": "1.0", "base2": "1.0"}),
    (["source"], {"base": "1.0", "source-only": "1.0"}),
]


@pytest.mark.parametrize(("extras", "expected"), SETS, ids=lambda value: "+".join(value))
def test_a_closure_is_exactly_what_the_extras_lock_to(
    uv: str, locked: Path, target: Target, extras: list[str], expected: dict[str, str]
) -> None:
    closure = read_closure(uv, locked, extras, target)
    assert contents(closure) == expected
    assert closure.project is None
    assert list(closure.artifacts) == sorted(closure.artifacts)
    assert set(closure.urls) == {artifact.filename for artifact in closure.artifacts}


def test_files_hashes_sizes_and_addresses_are_the_indexes(uv: str, locked: Path, target: Target, index: Any) -> None:
    closure = read_closure(uv, locked, ["native", "source"], target)
    kinds = {artifact.filename: artifact.kind for artifact in closure.artifacts}
    assert kinds == {
        "base-1.0-py3-none-any.whl": "wheel",
        "native-1.0-cp313-cp313-manylinux_2_17_x86_64.whl": "wheel",
        "source_only-1.0.tar.gz": "sdist",
    }
    for artifact in closure.artifacts:
        data = index.answers[f"/files/{artifact.filename}"]
        assert (artifact.sha256, artifact.size) == (hashlib.sha256(data).hexdigest(), len(data))
        assert closure.urls[artifact.filename] == f"{index.url}/files/{artifact.filename}"


def test_the_wheel_is_the_targets_and_not_the_hosts(uv: str, locked: Path, target: Target) -> None:
    other = dataclasses.replace(target, python="3.12.1")
    names = [
        artifact.filename
        for some in (target, other)
        for artifact in read_closure(uv, locked, ["native"], some).artifacts
        if artifact.name == "native"
    ]
    assert [name.split("-")[2] for name in names] == ["cp313", "cp312"]


# Each: an extra, and what is exchanged in the target.
WITHOUT_FILES = [
    ("native", {"python": "3.14.0"}),
    ("native", {"machine": "aarch64"}),
    ("native", {"glibc": "2.12"}),
    ("old", {}),
]


@pytest.mark.parametrize(("extra", "changes"), WITHOUT_FILES)
def test_a_lock_without_a_file_for_the_target_is_an_error_that_names_the_package(
    uv: str, locked: Path, target: Target, extra: str, changes: dict[str, str]
) -> None:
    with pytest.raises(LockError, match="native" if extra == "native" else "other-python") as caught:
        read_closure(uv, locked, [extra], dataclasses.replace(target, **changes))
    assert caught.value.exit_code == 5


def test_a_python_that_the_project_does_not_support(uv: str, locked: Path, target: Target) -> None:
    with pytest.raises(LockError, match=r"3\.10\.13"):
        read_closure(uv, locked, [], dataclasses.replace(target, python="3.10.13"))


@pytest.mark.parametrize("extras", [["undeclared"], ["one", "undeclared"], ["one", "two"]])
def test_undeclared_and_conflicting_extras_are_bad_usage(
    uv: str, locked: Path, target: Target, extras: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        read_closure(uv, locked, extras, target)
    assert all(word in caught.value.what for word in (extras[-1], "+".join(extras)))


def test_reading_changes_nothing(uv: str, locked: Path, target: Target) -> None:
    before = {path.name: path.read_bytes() for path in locked.iterdir() if path.is_file()}
    read_closure(uv, locked, ["one"], target)
    assert {path.name: path.read_bytes() for path in locked.iterdir() if path.is_file()} == before
    assert {path.name for path in locked.iterdir()} == {"pyproject.toml", "uv.lock"}


def test_the_lock_is_used_as_it_stands(uv: str, locked: Path, target: Target, tmp_path: Path) -> None:
    """Also when it is stale: whether it may be used is checked elsewhere, once."""
    root = shutil.copytree(locked, tmp_path / "copy")
    text = (root / "pyproject.toml").read_text()
    (root / "pyproject.toml").write_text(text.replace('["base"]', '["base", "native"]'))
    before = (root / "uv.lock").read_bytes()
    assert contents(read_closure(uv, root, [], target)) == {"base": "1.0"}
    assert (root / "uv.lock").read_bytes() == before


def test_a_project_that_is_a_package_is_told_apart(
    uv: str, write_project: WriteProject, tmp_path: Path, target: Target
) -> None:
    root = write_project(tmp_path / "package", package=True)
    uv_lock(uv, root)
    closure = read_closure(uv, root, ["two"], target)
    assert closure.project == ("demo", "3.1")
    assert contents(closure) == {"base": "1.0", "shared": "2.0"}


def test_a_version_computed_in_the_build_is_refused(
    uv: str, write_project: WriteProject, tmp_path: Path, target: Target
) -> None:
    root = write_project(tmp_path / "package", package=True)
    uv_lock(uv, root)
    for name, old, new in [
        ("pyproject.toml", 'version = "3.1"', 'dynamic = ["version"]'),
        ("uv.lock", 'version = "3.1"\n', ""),
    ]:
        text = (root / name).read_text()
        assert old in text
        (root / name).write_text(text.replace(old, new, 1))
    with pytest.raises(UsageError, match="demo computes its version"):
        read_closure(uv, root, [], target)


OUTSIDE = {
    "directory": 'base = { path = "../other" }',
    "directory, editable": 'base = { path = "../other", editable = true }',
    "file": 'base = { path = "../base-1.0-py3-none-any.whl" }',
}


@pytest.mark.parametrize("kind", OUTSIDE)
def test_sources_outside_of_the_project_are_refused_by_name(
    uv: str, write_project: WriteProject, tmp_path: Path, target: Target, index: Any, kind: str
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "pyproject.toml").write_text(
        '[project]\nname = "base"\nversion = "1.0"\n[build-system]\nrequires = []\nbuild-backend = "none"\n'
    )
    (tmp_path / "base-1.0-py3-none-any.whl").write_bytes(index.answers["/files/base-1.0-py3-none-any.whl"])
    root = write_project(tmp_path / "project", extra_lines=f"\n[tool.uv.sources]\n{OUTSIDE[kind]}\n")
    uv_lock(uv, root)
    with pytest.raises(UsageError, match=r"base lies at .*, outside of the project's directory"):
        read_closure(uv, root, [], target)


def test_a_lock_that_cannot_be_read(uv: str, locked: Path, target: Target, tmp_path: Path) -> None:
    root = shutil.copytree(locked, tmp_path / "copy")
    (root / "uv.lock").write_text("version = [")
    with pytest.raises(LockError, match=r"uv\.lock cannot be read"):
        read_closure(uv, root, [], target)


def test_a_lock_without_hashes_is_refused(uv: str, locked: Path, target: Target, tmp_path: Path) -> None:
    root = shutil.copytree(locked, tmp_path / "copy")
    lines = (root / "uv.lock").read_text().splitlines()
    kept = [line.split(", hash = ")[0] + " }," if "/base-1.0" in line else line for line in lines]
    assert kept != lines
    (root / "uv.lock").write_text("\n".join(kept))
    with pytest.raises(LockError, match=r"base|hash"):
        read_closure(uv, root, [], target)


def test_a_right_lock_passes_its_check(uv: str, locked: Path) -> None:
    check_lock(uv, locked)


def test_a_missing_lock(uv: str, write_project: WriteProject, tmp_path: Path) -> None:
    with pytest.raises(LockError, match=r"no uv\.lock in") as caught:
        check_lock(uv, write_project(tmp_path / "project"))
    assert caught.value.exit_code == 5


def test_a_stale_lock_is_an_error_and_stays_as_it_is(uv: str, locked: Path, tmp_path: Path) -> None:
    root = shutil.copytree(locked, tmp_path / "copy")
    text = (root / "pyproject.toml").read_text()
    (root / "pyproject.toml").write_text(text.replace('dependencies = ["base"]', 'dependencies = ["base", "native"]'))
    before = (root / "uv.lock").read_bytes()
    with pytest.raises(LockError, match=r"does not match pyproject\.toml") as caught:
        check_lock(uv, root)
    assert caught.value.exit_code == 5
    assert (root / "uv.lock").read_bytes() == before


def test_requirements_that_do_not_resolve(uv: str, write_project: WriteProject, tmp_path: Path) -> None:
    root = write_project(tmp_path / "project")
    text = (root / "pyproject.toml").read_text()
    (root / "pyproject.toml").write_text(text.replace('["base"]', '["base>2"]'))
    with pytest.raises(LockError, match=r"uv lock failed: .*base") as caught:
        uv_lock(uv, root)
    assert caught.value.exit_code == 5
    assert not (root / "uv.lock").exists()
