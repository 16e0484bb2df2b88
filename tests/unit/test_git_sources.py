"""Git sources: the files of a commit, the same bytes every time, and one line when they cannot be had."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import pytest

from greenroom.errors import BuildError
from greenroom.git_sources import Repository, pack_repositories, parse


def git(directory: Path, *words: str) -> str:
    identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost", "-c", "protocol.file.allow=always"]
    done = subprocess.run(
        ["git", "-C", directory, *identity, *words], check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "src").mkdir(parents=True)
    (root / "src" / "thing.py").write_text("one\n")
    (root / "run").write_text("#!/bin/sh\n")
    (root / "run").chmod(0o755)
    (root / ".gitattributes").write_text("src/thing.py export-ignore\n")
    git(root, "init", "--quiet", "--initial-branch", "main")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "one")
    return root


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GREENROOM_CACHE_DIR", str(tmp_path / "cache"))


ADDRESSES = {
    "git+https://host.example/a/b@0123": Repository(url="https://host.example/a/b", commit="0123"),
    "git+ssh://git@host.example/a/b.git@0123": Repository(url="ssh://git@host.example/a/b.git", commit="0123"),
    "git+file:///a/b@0123#subdirectory=x/y": Repository(url="file:///a/b", commit="0123", subdirectory="x/y"),
}


@pytest.mark.parametrize("address", ADDRESSES)
def test_addresses(address: str) -> None:
    assert parse(address) == ADDRESSES[address]


def pack(repository: Path, commit: str, directory: Path) -> list[Path]:
    return pack_repositories(
        {"x.whl": "https://host.example/x.whl", "t.git": f"git+file://{repository}@{commit}"}, directory
    )


def test_a_commit_s_files_are_packed_without_history(repository: Path, tmp_path: Path) -> None:
    first = git(repository, "rev-parse", "HEAD")
    (repository / "src" / "thing.py").write_text("two\n")
    git(repository, "commit", "--quiet", "--all", "--message", "two")
    (packed,) = pack(repository, first, tmp_path / "out")
    assert packed.name == "t.git.tar"
    with tarfile.open(packed) as archive:
        modes = {member.name: oct(member.mode) for member in archive if member.isfile()}
        assert modes == {".gitattributes": "0o644", "run": "0o755", "src/thing.py": "0o644"}
        assert {member.mtime for member in archive} == {0}
        thing = archive.extractfile("src/thing.py")
        assert thing and thing.read() == b"one\n"


def test_the_same_commit_gives_the_same_bytes_and_is_fetched_once(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    (first,) = pack(repository, commit, tmp_path / "one")
    with monkeypatch.context() as patch:
        patch.setenv("GREENROOM_CACHE_DIR", str(tmp_path / "other"))
        (second,) = pack(repository, commit, tmp_path / "two")
    assert first.read_bytes() == second.read_bytes()
    repository.rename(tmp_path / "gone")
    (third,) = pack(repository, commit, tmp_path / "three")
    assert third.read_bytes() == first.read_bytes()


def test_submodules_are_packed_too(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # git refuses submodules from paths unless it is told otherwise; those of servers need no such word.
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "protocol.file.allow")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "always")
    outer = tmp_path / "outer"
    outer.mkdir()
    git(outer, "init", "--quiet", "--initial-branch", "main")
    git(outer, "submodule", "--quiet", "add", f"file://{repository}", "vendor/inner")
    git(outer, "commit", "--quiet", "--message", "one")
    (packed,) = pack(outer, git(outer, "rev-parse", "HEAD"), tmp_path / "out")
    with tarfile.open(packed) as archive:
        names = set(archive.getnames())
    assert "vendor/inner/src/thing.py" in names
    assert not [name for name in names if Path(name).name == ".git"]


@pytest.mark.parametrize("lost", ["commit", "repository"])
def test_what_cannot_be_fetched_is_said_and_leaves_nothing(repository: Path, tmp_path: Path, lost: str) -> None:
    where = repository if lost == "commit" else tmp_path / "nowhere"
    with pytest.raises(BuildError, match="commit 000000000000 of file://") as caught:
        pack(where, "0" * 40, tmp_path / "out")
    assert caught.value.next_step == f"git ls-remote file://{where}"
    assert list((tmp_path / "cache" / "git").iterdir()) == []
