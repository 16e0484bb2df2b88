"""The scripts that fill the image's venvs, on real trees and with real wheels."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import venv_tree
from finish_venvs import check_closure
from greenroom.process import run
from install_slot import dist_info_of, fill, recorded_files, rounds
from venv_tree import EPOCH, SCRATCH, SETS, link_file, remove_scratch, settle, settle_parents


def entry(name: str, version: str = "1.0", *, sets: list[str] | None = None) -> dict[str, Any]:
    return {"name": name, "version": version, "wheel": f"{name}-{version}-py3-none-any.whl", "sets": sets or ["a"]}


def test_no_round_holds_two_versions_of_one_distribution() -> None:
    entries = [entry("x"), entry("y"), entry("x", "2"), entry("z"), entry("x", "3"), entry("y", "2")]
    groups = rounds(entries, {item["wheel"]: frozenset({item["wheel"]}) for item in entries})
    assert [[(item["name"], item["version"]) for item in group] for group in groups] == [
        [("x", "1.0"), ("y", "1.0"), ("z", "1.0")],
        [("x", "2"), ("y", "2")],
        [("x", "3")],
    ]
    assert rounds([], {}) == []


def test_no_round_holds_two_wheels_with_a_path_in_common() -> None:
    entries = [entry("x"), entry("y"), entry("z")]
    contents = {entries[0]["wheel"]: {"a", "shared"}, entries[1]["wheel"]: {"b", "shared"}, entries[2]["wheel"]: {"c"}}
    groups = rounds(entries, {wheel: frozenset(paths) for wheel, paths in contents.items()})
    assert [[item["name"] for item in group] for group in groups] == [["x", "z"], ["y"]]


DIST_INFOS = [
    ("numpy-1.0.dist-info", "numpy"),
    ("ruamel.yaml-1.0.dist-info", "ruamel-yaml"),
    ("Nemo_Gym-1.0.post1+cu12.dist-info", "nemo-gym"),
    ("a__b-2!1.0.dist-info", "a-b"),
]


@pytest.mark.parametrize(("directory", "name"), DIST_INFOS)
def test_distributions_are_found_by_normalised_name(tmp_path: Path, directory: str, name: str) -> None:
    (tmp_path / directory).mkdir()
    (tmp_path / "other").mkdir()
    assert dist_info_of(tmp_path) == {name: tmp_path / directory}


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_text("content")
    (source / "link").symlink_to("file")
    return source, tmp_path / "set"


def test_a_file_is_hardlinked_and_a_link_made_anew(trees: tuple[Path, Path]) -> None:
    source, target = trees
    link_file(f"{source}/file", f"{target}/deep/file", "x 1")
    link_file(f"{source}/link", f"{target}/deep/link", "x 1")
    assert (target / "deep/file").samefile(source / "file")
    assert (target / "deep/link").readlink() == Path("file")
    assert (target / "deep/link").lstat().st_mtime == EPOCH


# Each: what is already there, whether it is replaced.
CONFLICTS: dict[str, tuple[Callable[[Path], object], bool]] = {
    "the same content": (lambda path: path.write_text("content"), False),
    "other content": (lambda path: path.write_text("another"), True),
    "other content of the same size": (lambda path: path.write_text("CONTENT"), True),
    "a link to the same content": (lambda path: path.symlink_to("same"), True),
    "a dangling link": (lambda path: path.symlink_to("nowhere"), True),
}


@pytest.mark.parametrize("case", CONFLICTS)
def test_a_path_of_two_distributions(trees: tuple[Path, Path], case: str, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = trees
    prepare, replaced = CONFLICTS[case]
    target.mkdir()
    (target / "same").write_text("content")
    prepare(target / "file")
    link_file(f"{source}/file", f"{target}/file", "x 1")
    assert (target / "file").read_text() == "content"
    assert not (target / "file").is_symlink()
    said = f"greenroom: x 1 replaces {target}/file, which another distribution installed\n"
    assert capsys.readouterr().out == (said if replaced else "")


def test_an_equal_file_of_an_earlier_layer_is_this_layers_own_now(trees: tuple[Path, Path]) -> None:
    source, target = trees
    target.mkdir()
    (target / "file").write_text("content")
    link_file(f"{source}/file", f"{target}/file", "x 1")
    assert (target / "file").samefile(source / "file")


def test_a_replaced_file_stays_as_it_is_in_other_sets(trees: tuple[Path, Path], tmp_path: Path) -> None:
    """Hardlinks share content: replacing must not write through one."""
    source, target = trees
    other = tmp_path / "other"
    other.write_text("another")
    target.mkdir()
    os.link(other, target / "file")
    link_file(f"{source}/file", f"{target}/file", "x 1")
    assert other.read_text() == "another"


MODES = [
    (0o600, 0o644),
    (0o644, 0o644),
    (0o666, 0o644),
    (0o700, 0o755),
    (0o777, 0o755),
    (0o400, 0o444),
    (0o500, 0o555),
]


@pytest.mark.parametrize(("before", "after"), MODES)
def test_files_are_settled_readable_for_everyone_and_writable_by_no_other(
    tmp_path: Path, before: int, after: int
) -> None:
    path = tmp_path / "file"
    path.touch()
    path.chmod(before)
    settle(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == after
    assert path.stat().st_mtime == EPOCH


def test_directories_and_links_are_settled(tmp_path: Path) -> None:
    directory = tmp_path / "directory"
    directory.mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to("nowhere")
    for path in (directory, link):
        settle(str(path))
        assert path.lstat().st_mtime == EPOCH
    assert stat.S_IMODE(directory.stat().st_mode) == 0o755


def test_parents_are_settled_up_to_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settled: list[Path] = []
    monkeypatch.setattr(os, "utime", lambda path, times, **_: settled.append(Path(path)))
    settle_parents(tmp_path / "a" / "b")
    assert settled[:3] == [tmp_path / "a" / "b", tmp_path / "a", tmp_path]
    assert settled[-1].parent == Path("/") and Path("/") not in settled


def test_a_scratch_that_stays_fails_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / SCRATCH / "deep").mkdir(parents=True)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    with pytest.raises(SystemExit, match="cannot be removed"):
        remove_scratch(tmp_path)
    monkeypatch.undo()
    remove_scratch(tmp_path)
    remove_scratch(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("row", ["../../../../outside.py,,", "missing.py,,", "/etc/passwd,,"])
def test_a_record_of_what_is_not_in_the_venv_is_refused(tmp_path: Path, row: str) -> None:
    info = tmp_path / "venv/lib/python3/site-packages/x-1.dist-info"
    info.mkdir(parents=True)
    (tmp_path / "outside.py").touch()
    (info / "RECORD").write_text(f"x-1.dist-info/RECORD,,\n{row}\n")
    with pytest.raises(SystemExit, match=r"x 1 records .* not in its venv"):
        recorded_files(tmp_path / "venv", info, "x 1")


def test_records_name_files_relative_to_the_venv(tmp_path: Path) -> None:
    info = tmp_path / "lib/python3/site-packages/x-1.dist-info"
    info.mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    for path in ("bin/x", "lib/python3/site-packages/a, b.py"):
        (tmp_path / path).touch()
    (info / "RECORD").write_text('"a, b.py",,\n../../../bin/x,,\n\nx-1.dist-info/RECORD,,\n')
    assert recorded_files(tmp_path, info, "x 1") == [
        "lib/python3/site-packages/a, b.py",
        "bin/x",
        "lib/python3/site-packages/x-1.dist-info/RECORD",
    ]


@pytest.fixture
def slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uv: str, own_uv: None) -> Path:
    """A slot directory; the scripts find uv beside them, as in the build."""
    import install_slot

    installer = tmp_path / "installer"
    installer.mkdir()
    (installer / "uv").symlink_to(uv)
    empty = ["venv", "--quiet", "--relocatable", "--no-project", "--python", sys.executable]
    run([uv, *empty, installer / "empty-venv"])
    monkeypatch.setattr(install_slot, "__file__", str(installer / "install_slot.py"))
    (tmp_path / "slot").mkdir()
    return tmp_path / "slot"


def put(slot: Path, made: tuple[str, bytes]) -> None:
    (slot / made[0]).write_bytes(made[1])


def tree(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return everything below a directory: path → mode, time, content."""
    return {
        str(path.relative_to(directory)): (
            path.lstat().st_mode,
            path.lstat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(directory.rglob("*"))
    }


def test_a_slot_fills_its_sets_once_and_the_same_every_time(
    slot: Path, tmp_path: Path, make_wheel: Callable[..., tuple[str, bytes]]
) -> None:
    put(slot, make_wheel("shared", scripts={"run-it": "shared:main"}))
    put(slot, make_wheel("two", "1.0"))
    put(slot, make_wheel("two", "2.0"))
    entries = [
        entry("shared", sets=["a", "b+c"]),
        entry("two", "1.0", sets=["a"]),
        entry("two", "2.0", sets=["b+c"]),
    ]
    roots = [tmp_path / name / "venvs" for name in ("first", "second")]
    for venvs in roots:
        venvs.mkdir(parents=True)
        fill(entries, slot, venvs, "03")
    sets = roots[0] / SETS
    (site,) = (sets / "a").glob("lib/python3.*/site-packages")
    relative = site.relative_to(sets / "a")
    assert (sets / "a" / relative / "shared.py").samefile(sets / "b+c" / relative / "shared.py")
    assert (sets / "a/bin/run-it").samefile(sets / "b+c/bin/run-it")
    assert (sets / "a" / relative / "two.py").read_text() == "version = '1.0'\n"
    assert (sets / "b+c" / relative / "two.py").read_text() == "version = '2.0'\n"
    assert not (roots[0] / SCRATCH).exists()
    everything = tree(roots[0])
    assert {time for _, time, _ in everything.values()} == {EPOCH * 10**9}
    assert not [name for name in everything if name.endswith(("direct_url.json", "REQUESTED", ".whl", ".lock"))]
    assert tree(roots[1]) == everything
    assert str(tmp_path) not in (sets / "a/bin/run-it").read_text()


def test_a_wheel_that_is_another_distribution_fails_the_step(
    slot: Path, tmp_path: Path, make_wheel: Callable[..., tuple[str, bytes]]
) -> None:
    put(slot, make_wheel("other"))
    wrong = {**entry("named"), "wheel": "other-1.0-py3-none-any.whl"}
    (tmp_path / "venvs").mkdir()
    with pytest.raises(SystemExit, match="did not install a distribution named named"):
        fill([wrong], slot, tmp_path / "venvs", "03")


def test_a_broken_wheel_fails_the_step_with_uvs_words(slot: Path, tmp_path: Path) -> None:
    (slot / "broken-1.0-py3-none-any.whl").write_bytes(b"not a zip file")
    (tmp_path / "venvs").mkdir()
    with pytest.raises(SystemExit, match=r"greenroom: uv pip failed \(\d\): .*broken.* zip file"):
        fill([entry("broken")], slot, tmp_path / "venvs", "03")


def test_an_empty_slot_changes_nothing(slot: Path, tmp_path: Path) -> None:
    (slot / "slot.json").write_text("[]")
    script = Path(venv_tree.__file__).with_name("install_slot.py")
    done = run([sys.executable, script, slot, tmp_path / "venvs", "07"])
    assert done.stdout == ""
    assert not (tmp_path / "venvs").exists()


@pytest.mark.parametrize(
    ("closure", "said"),
    [
        ({"numpy": "1.0"}, None),
        ({}, "missing nothing; unexpected numpy"),
        ({"numpy": "1.0", "scipy": "1.0"}, "missing scipy; unexpected nothing"),
        ({"scipy": "1.0"}, "missing scipy; unexpected numpy"),
    ],
)
def test_a_set_holds_exactly_its_closure_or_the_build_ends(
    tmp_path: Path, closure: dict[str, str], said: str | None
) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (tmp_path / "lib" / version / "site-packages" / "numpy-1.0.dist-info").mkdir(parents=True)
    if said is None:
        check_closure(tmp_path, closure, "a")
        return
    with pytest.raises(SystemExit, match=f"set a: {said}"):
        check_closure(tmp_path, closure, "a")


def test_the_scripts_of_a_layer_need_the_standard_library_alone() -> None:
    """They run in the base image's interpreter, where nothing is installed."""
    directory = Path(venv_tree.__file__).parent
    code = (
        f"import sys; sys.path.insert(0, {str(directory)!r}); import finish_venvs, install_slot; print(json.dumps(1))"
    )
    done = run([sys.executable, "-I", "-S", "-c", f"import json; {code}"])
    assert json.loads(done.stdout) == 1
