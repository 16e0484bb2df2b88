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


def test_a_hook_s_own_repository_is_left_alone(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    git(mine, "init", "--quiet", "--initial-branch", "main")
    git(mine, "commit", "--quiet", "--allow-empty", "--message", "mine")
    before = git(mine, "rev-parse", "HEAD"), git(mine, "symbolic-ref", "HEAD")
    commit = git(repository, "rev-parse", "HEAD")
    with monkeypatch.context() as patch:
        patch.setenv("GIT_DIR", str(mine / ".git"))
        patch.setenv("GIT_INDEX_FILE", str(mine / ".git" / "index"))
        patch.setenv("GIT_WORK_TREE", str(mine))
        (packed,) = pack(repository, commit, tmp_path / "out")
    assert (git(mine, "rev-parse", "HEAD"), git(mine, "symbolic-ref", "HEAD")) == before
    assert git(mine, "status", "--porcelain") == ""
    with tarfile.open(packed) as archive:
        assert "src/thing.py" in archive.getnames()


def configured(monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
    monkeypatch.setenv("GIT_CONFIG_COUNT", str(len(settings)))
    for number, (name, value) in enumerate(settings.items()):
        monkeypatch.setenv(f"GIT_CONFIG_KEY_{number}", name.replace("_", "."))
        monkeypatch.setenv(f"GIT_CONFIG_VALUE_{number}", value)


def test_a_submodule_s_address_may_be_relative(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(monkeypatch, protocol_file_allow="always")
    outer = tmp_path / "outer"
    outer.mkdir()
    git(outer, "init", "--quiet", "--initial-branch", "main")
    git(outer, "submodule", "--quiet", "add", f"file://{repository}", "inner")
    git(outer, "config", "--file", ".gitmodules", "submodule.inner.url", "../repository")
    git(outer, "add", "--all")
    git(outer, "commit", "--quiet", "--message", "one")
    (packed,) = pack(outer, git(outer, "rev-parse", "HEAD"), tmp_path / "out")
    with tarfile.open(packed) as archive:
        assert "inner/src/thing.py" in archive.getnames()


@pytest.mark.parametrize("branch", ["main", "master"])
def test_servers_that_give_branches_only_are_asked_for_these(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, branch: str
) -> None:
    git(repository, "branch", "--move", branch)
    first = git(repository, "rev-parse", "HEAD")
    git(repository, "commit", "--quiet", "--allow-empty", "--message", "two")
    # The old protocol: what is no branch's end cannot be asked for.
    configured(monkeypatch, protocol_version="0", init_defaultBranch=branch)
    (packed,) = pack(repository, first, tmp_path / "out")
    assert packed.is_file()


def test_a_part_of_a_file_in_the_cache_is_fetched_again(repository: Path, tmp_path: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    (first,) = pack(repository, commit, tmp_path / "one")
    whole = first.read_bytes()
    (cached,) = (tmp_path / "cache" / "git").glob("*.tar")
    cached.write_bytes(whole[: len(whole) // 2])
    (second,) = pack(repository, commit, tmp_path / "two")
    assert second.read_bytes() == whole
