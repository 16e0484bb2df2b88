"""Sources from git repositories: fetched on the host, where credentials and keys are, and handed to the build as files.

One tar file for each commit, with submodules and without history, made aside and renamed; what is in the cache is
used again, since a commit names its content.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from greenroom.console import say
from greenroom.errors import BuildError, UsageError
from greenroom.files import cache_dir
from greenroom.process import ProcessError, is_dry_run, run

PREFIX = "git+"
FETCH_TIMEOUT = 1800.0
_OF_A_REPOSITORY = frozenset(
    [
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_OBJECT_DIRECTORY",
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_IMPLICIT_WORK_TREE",
        "GIT_GRAFT_FILE",
        "GIT_INDEX_FILE",
        "GIT_NO_REPLACE_OBJECTS",
        "GIT_REPLACE_REF_BASE",
        "GIT_PREFIX",
        "GIT_SHALLOW_FILE",
        "GIT_COMMON_DIR",
    ]
)
"""What `git rev-parse --local-env-vars` names, settings aside: with them git would work on the caller's repository."""


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A commit of a repository.

    Attributes:
        url: the repository's address, as git takes it.
        commit: the commit.
        subdirectory: the distribution's directory in it; "" for its root.
    """

    url: str
    commit: str
    subdirectory: str = ""


def parse(url: str) -> Repository:
    """Read an address of the plan, `git+<repository>@<commit>[#subdirectory=<path>]` (as pip writes it)."""
    address, _, fragment = url.removeprefix(PREFIX).partition("#")
    repository, _, commit = address.rpartition("@")
    return Repository(url=repository, commit=commit, subdirectory=fragment.removeprefix("subdirectory="))


def pack_repositories(urls: Mapping[str, str], directory: Path) -> list[Path]:
    """Fetch the plan's git sources and put them into a directory.

    Args:
        urls: filename → address, of all of the plan's artifacts.
        directory: receives `<filename>.tar` for each that comes from git; made when missing.

    Returns:
        The files.

    Raises:
        BuildError: a repository cannot be reached or does not have the commit.
        UsageError: there is no git.
    """
    wanted = {filename: parse(url) for filename, url in sorted(urls.items()) if url.startswith(PREFIX)}
    if wanted and shutil.which("git") is None:
        raise UsageError("some sources come from git repositories, and there is no git here", next_step="install git")
    if is_dry_run():
        return []
    directory.mkdir(parents=True, exist_ok=True)
    packed = []
    for number, (filename, repository) in enumerate(wanted.items(), 1):
        target = directory / f"{filename}.tar"
        shutil.copyfile(_cached(repository, f"git source {number} of {len(wanted)}: {filename}"), target)
        packed.append(target)
    return packed


def git_environment() -> dict[str, str]:
    """Return our environment without what a hook of git says about its own repository, and nobody there to ask."""
    kept = {name: value for name, value in os.environ.items() if name not in _OF_A_REPOSITORY}
    return {**kept, "GIT_TERMINAL_PROMPT": "0"}


def _cached(repository: Repository, label: str) -> Path:
    address = hashlib.sha256(repository.url.encode()).hexdigest()[:16]
    cache = cache_dir() / "git"
    for done in cache.glob(f"{address}-{repository.commit}-*.tar"):
        # Its name has its hash: a machine that lost its power may have a part of it.
        if done.stem.endswith(_sha256(done)):
            return done
        done.unlink()
    say(label)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".fetch-") as scratch:
        tree = Path(scratch) / "tree"
        _check_out(repository, tree)
        aside = Path(scratch) / "tree.tar"
        _write_tar(tree, aside)
        return aside.replace(cache / f"{address}-{repository.commit}-{_sha256(aside)}.tar")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_out(repository: Repository, tree: Path) -> None:
    env = git_environment()

    def git(*words: str) -> None:
        run(["git", "-C", tree, *words], env=env, timeout=FETCH_TIMEOUT)

    tree.mkdir()
    try:
        git("init", "--quiet")
        # Submodules may have addresses relative to this one.
        git("remote", "add", "origin", repository.url)
        try:
            git("fetch", "--quiet", "--depth", "1", "origin", repository.commit)
        except ProcessError:
            # Some servers give branches and tags only, not commits by name.
            git("fetch", "--quiet", "origin", "+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
        git("checkout", "--quiet", "--detach", repository.commit)
        git("submodule", "--quiet", "update", "--init", "--recursive")
    except ProcessError as error:
        raise BuildError(
            f"commit {repository.commit[:12]} of {repository.url} cannot be fetched: {error.completed.last_lines(2)}",
            cause="the repository cannot be reached from here, refuses these credentials, or lost the commit",
            next_step=f"git ls-remote {repository.url}",
        ) from error


def _write_tar(tree: Path, target: Path) -> None:
    """Write a tree without git's own files: the same tree gives the same bytes."""

    def settled(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if Path(member.name).name == ".git":
            return None
        member.mtime = member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
        return member

    with tarfile.open(target, "w") as archive:
        for path in sorted(tree.iterdir()):
            # tarfile walks directories in the order of their names.
            archive.add(path, path.name, filter=settled)
