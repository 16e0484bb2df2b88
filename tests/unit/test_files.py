"""Files are old or new, never a part."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from greenroom.files import cache_dir, write_aside
from greenroom.process import dry_run


@pytest.mark.parametrize(("content", "data"), [("é\n", "é\n".encode()), (b"\x00\xff", b"\x00\xff"), ("", b"")])
def test_content_is_written_and_directories_made(tmp_path: Path, content: str | bytes, data: bytes) -> None:
    path = tmp_path / "a" / "b" / "file"
    write_aside(path, content)
    assert path.read_bytes() == data
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o755])
def test_permissions_are_exactly_those_asked_for(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    before = os.umask(0o077)
    try:
        write_aside(path, "new", mode=mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
@pytest.mark.parametrize("failure", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_content_and_nothing_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, failure: BaseException
) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail(*_: object, **__: object) -> None:
        raise failure

    owner: object = os if step == "fsync" else Path
    monkeypatch.setattr(owner, step, fail)
    with pytest.raises(type(failure)):
        write_aside(path, "new")
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_that_has_the_old_file_open_keeps_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old and long")
    with path.open() as reader:
        write_aside(path, "new")
        assert reader.read() == "old and long"
    assert path.read_text() == "new"


def test_a_dry_run_names_the_file_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "directory" / "file"
    with dry_run():
        write_aside(path, "new")
    assert capsys.readouterr().out == f"write {path}\n"
    assert not path.parent.exists()


CACHE_DIRECTORIES = [
    ({"GREENROOM_CACHE_DIR": "/own", "XDG_CACHE_HOME": "/xdg"}, "/own"),
    ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/greenroom"),
    ({"HOME": "/someone"}, "/someone/.cache/greenroom"),
    ({"GREENROOM_CACHE_DIR": "", "XDG_CACHE_HOME": "", "HOME": "/someone"}, "/someone/.cache/greenroom"),
]


@pytest.mark.parametrize(("environ", "directory"), CACHE_DIRECTORIES)
def test_cache_directory(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], directory: str) -> None:
    for variable in ("GREENROOM_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
    assert cache_dir() == Path(directory)
