"""The store of compiled wheels: found by all that decides them, and never half-written or damaged."""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from greenroom.errors import UsageError
from greenroom.lock import Artifact
from greenroom.process import dry_run
from greenroom.source_builds import BuildSettings
from greenroom.target import Target
from greenroom.wheel_store import ENTRY, copy_entries, describe, entries, keep, key_of, read_entry

ARTIFACT = Artifact(filename="x-1.tar.gz", name="x", version="1", sha256="a" * 64, size=9, kind="sdist")
OTHER = dataclasses.replace(ARTIFACT, filename="torch.whl", sha256="b" * 64, kind="wheel")
TARGET = Target(python="3.13.5", implementation="cpython", machine="x86_64", glibc="2.41")
ARGUMENTS: dict[str, Any] = {
    "artifact": ARTIFACT,
    "settings": BuildSettings(),
    "requires": [],
    "exclude_newer": "",
    "target": TARGET,
    "uv": "0.13.9",
    "environment": "sha256:e",
}


def description(**changes: Any) -> dict[str, Any]:
    arguments = {**ARGUMENTS, **changes}
    return describe(arguments.pop("artifact"), arguments.pop("settings"), **arguments)


CHANGES: dict[str, dict[str, Any]] = {
    "source": {"artifact": dataclasses.replace(ARTIFACT, sha256="c" * 64)},
    "version": {"artifact": dataclasses.replace(ARTIFACT, version="2")},
    "variables": {"settings": BuildSettings(variables=(("CFLAGS", "-O1"),))},
    "backend settings": {"settings": BuildSettings(config_settings=(("a", "b"),))},
    "build requirements": {"settings": BuildSettings(requirements=("ninja",))},
    "isolation": {"settings": BuildSettings(isolated=False)},
    "build environment": {"requires": [OTHER]},
    "age of build requirements": {"exclude_newer": "2026-01-01"},
    "Python": {"target": dataclasses.replace(TARGET, python="3.12.1")},
    "processor": {"target": dataclasses.replace(TARGET, machine="aarch64")},
    "C library": {"target": dataclasses.replace(TARGET, glibc="2.36")},
    "uv": {"uv": "0.14.0"},
    "compile image": {"environment": "sha256:f"},
}


@pytest.mark.parametrize("case", CHANGES)
def test_whatever_decides_a_wheel_changes_its_key(case: str) -> None:
    assert key_of(description(**CHANGES[case])) != key_of(description())


def test_what_does_not_decide_it_keeps_its_key() -> None:
    patch = {"target": dataclasses.replace(TARGET, python="3.13.9")}
    renamed = {"artifact": dataclasses.replace(ARTIFACT, filename="x-1.zip", size=0)}
    assert key_of(description(**patch)) == key_of(description(**renamed)) == key_of(description())


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "x-1-py3-none-any.whl"
    path.write_bytes(b"wheel")
    return path


def test_what_is_kept_is_found_again(tmp_path: Path, wheel: Path) -> None:
    store = tmp_path / "deep" / "store"
    entry = keep(store, wheel, description())
    assert (entry.key, entry.wheel.read_bytes()) == (key_of(description()), b"wheel")
    assert list(entries(store)) == [entry] == [read_entry(store / entry.key)]
    wheel.write_bytes(b"another build of the same")
    assert keep(store, wheel, description()).wheel.read_bytes() == b"wheel"


def damage_wheel(directory: Path) -> None:
    next(directory.glob("*.whl")).write_bytes(b"wheeL")


def damage_description(directory: Path) -> None:
    record = json.loads((directory / ENTRY).read_text())
    record["made_from"]["uv"] = "0.1"
    (directory / ENTRY).write_text(json.dumps(record))


def remove_wheel(directory: Path) -> None:
    next(directory.glob("*.whl")).unlink()


def cut_description(directory: Path) -> None:
    (directory / ENTRY).write_text((directory / ENTRY).read_text()[:40])


@pytest.mark.parametrize("damage", [damage_wheel, damage_description, remove_wheel, cut_description])
def test_a_damaged_entry_is_refused_and_made_again(tmp_path: Path, wheel: Path, damage: Any) -> None:
    store = tmp_path / "store"
    entry = keep(store, wheel, description())
    damage(store / entry.key)
    with pytest.raises(ValueError, match=entry.key):
        read_entry(store / entry.key)
    with pytest.raises(UsageError, match=entry.key):
        copy_entries(store, tmp_path / "copy")
    assert keep(store, wheel, description()).wheel.read_bytes() == b"wheel"


def test_an_entry_under_another_key_is_refused(tmp_path: Path, wheel: Path) -> None:
    entry = keep(tmp_path / "store", wheel, description())
    renamed = (tmp_path / "store" / entry.key).rename(tmp_path / "store" / ("0" * 32))
    with pytest.raises(ValueError, match="is not what its key says"):
        read_entry(renamed)


def test_stores_are_copied_as_directories(tmp_path: Path, wheel: Path) -> None:
    with pytest.raises(UsageError, match="holds no compiled wheels"):
        copy_entries(tmp_path / "none", tmp_path / "copy")
    keep(tmp_path / "store", wheel, description())
    keep(tmp_path / "store", wheel, description(uv="0.14.0"))
    copied = copy_entries(tmp_path / "store", tmp_path / "copy")
    assert copied == list(entries(tmp_path / "copy"))
    assert [entry.key for entry in copied] == [entry.key for entry in entries(tmp_path / "store")]


def test_many_at_once_leave_one_whole_entry(tmp_path: Path, wheel: Path) -> None:
    store = tmp_path / "store"
    threads = [threading.Thread(target=keep, args=(store, wheel, description())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(list(entries(store))) == 1
    assert sorted(path.name for path in store.iterdir()) == [".lock", key_of(description())]


def forget_hash(directory: Path) -> None:
    record = json.loads((directory / ENTRY).read_text())
    del record["sha256"]
    (directory / ENTRY).write_text(json.dumps(record))


def link_elsewhere(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.symlink_to("/nonexistent")


def be_a_file(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.write_text("")


@pytest.mark.parametrize("damage", [forget_hash, link_elsewhere, be_a_file])
def test_whatever_lies_at_a_key_is_replaced(tmp_path: Path, wheel: Path, damage: Any) -> None:
    store = tmp_path / "store"
    entry = keep(store, wheel, description())
    damage(store / entry.key)
    with pytest.raises(ValueError, match=entry.key):
        read_entry(store / entry.key)
    assert keep(store, wheel, description()).wheel.read_bytes() == b"wheel"


def test_a_description_of_nothing_is_no_entry(tmp_path: Path, wheel: Path) -> None:
    directory = tmp_path / key_of({})
    directory.mkdir()
    (directory / ENTRY).write_text(json.dumps({"wheel": wheel.name, "sha256": "", "made_from": {}}))
    with pytest.raises(ValueError, match="names no distribution"):
        read_entry(directory)


def test_a_dry_copy_writes_nothing(tmp_path: Path, wheel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(tmp_path / "store", wheel, description())
    with dry_run():
        copy_entries(tmp_path / "store", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert key_of(description()) in capsys.readouterr().out
