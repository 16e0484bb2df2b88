"""`kill -9` at any moment of a build: the next run converges, and nothing of the killed one is left.

All of it happens in private engines of its own, with the packages and the base image of the usual one. A test's name
tells the moment, as a part of the time in which its victim lives; `GREENROOM_TEST_SEED` draws others.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock, Timeout
from tests.image.support import (
    COMMAND_TIMEOUT,
    clean_environment,
    error_line,
    program,
    succeeded,
    write_project,
)
from tests.image.test_private_engine import NO_ENGINE, _link, command_lines, daemon, fill, wait_for

from greenroom import engine_state, private_engine
from greenroom.base_image import ensure_base_image
from greenroom.engine import Engine, find_engine, stop_engine
from greenroom.errors import EngineError
from greenroom.process import Completed, run
from greenroom.project import DEFAULT_BASE_IMAGE

pytestmark = pytest.mark.skipif(
    private_engine.unusable() is not None, reason=f"no private engine here: {private_engine.unusable()}"
)

SEED = int(os.environ.get("GREENROOM_TEST_SEED", "1"))
MOMENTS = {"greenroom": 5, "greenroom, its engine stopped before": 3, "buildx": 6, "engine": 6}
TAG = "interrupted:1"
PATIENCE = 20.0
"""Seconds after the next run for what a killed command has left to end by itself."""
EXTRAS = {
    "a": ["six"],
    "b": ["idna"],
    "c": ["toolz"],
    "d": ["iniconfig"],
    "e": ["packaging"],
    "f": ["certifi"],
}
SETS = iter([words for size in (3, 4, 2) for words in itertools.combinations(EXTRAS, size)])
"""Each is used once: what is interrupted has slots and venvs to make that no earlier build here has made."""

DISK = "1500m"
"""Size of the disk that the engine has for its data."""


def drawn() -> list[tuple[str, float]]:
    """Return the victims with their moments."""
    draw = random.Random(SEED)
    return [(victim, round(draw.random(), 3)) for victim, count in MOMENTS.items() for _ in range(count)]


@dataclass(frozen=True, kw_only=True)
class Site:
    """An engine and a project that nobody else uses.

    Attributes:
        cache: greenroom's cache directory; what has it in its environment was started by these tests.
        scratch: the temporary directory of all commands.
        project: the project.
        variables: the commands' environment.
        lives: seconds from a build's start at which each victim came and went.
        mounts: the engine's, when it does nothing.
    """

    cache: Path
    scratch: Path
    project: Path
    variables: dict[str, str]
    lives: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    mounts: frozenset[Path] = frozenset()

    def start(self, *words: str, project: Path | None = None, tag: str = TAG) -> subprocess.Popen[str]:
        """Start a build."""
        return subprocess.Popen(
            [str(program("greenroom")), "image", "--project", str(project or self.project), "--tag", tag, *words],
            env=clean_environment(self.variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def command(self, *words: str | Path) -> Completed:
        """Run another command to its end."""
        return run([program("greenroom"), *words], env=clean_environment(self.variables), timeout=120, check=False)

    def renew(self, project: Path | None = None, extras: Sequence[str] = ()) -> None:
        """Give a project an actor with these extras; with a set that was never built when there are none."""
        write_project(
            project or self.project, actors={"job.Always": [], "job.Changing": extras or next(SETS)}, extras=EXTRAS
        )

    def processes(self) -> dict[int, str]:
        """Return the commands that were started here, and what they started, but for the engine: command line by pid."""
        mark = os.fsencode(f"GREENROOM_CACHE_DIR={self.cache}")
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    found[int(process.name)] = os.fsdecode((process / "cmdline").read_bytes()).replace("\0", " ")
        return found

    def buildx(self) -> int | None:
        """Return the pid of the buildx that builds (the program, not the docker that starts it), or None."""
        lines = self.processes().items()
        return next((pid for pid, line in lines if "/docker-buildx " in line and " buildx build " in line), None)

    def left_over(self) -> dict[str, object]:
        """Return what would not be there if no build had been cut short."""
        engine = find_engine(start=False)
        containers = engine.cli("ps", "--all", "--format", "{{.Names}} {{.Status}} {{.Command}}").stdout.splitlines()
        tags = engine.cli("images", "--format", "{{.Repository}}:{{.Tag}}").stdout.split()
        left = {
            "processes": list(self.processes().values()),
            "containers": containers,
            "tags": [tag for tag in tags if "unverified" in tag],
            "mounts": sorted(map(str, set(engine_state.own_mounts(engine_state.layout())) - self.mounts)),
            "scratch": [path.name for path in self.scratch.iterdir()],
            "locks": [
                str(lock)
                for where in ("locks/*", "engine/*lock")
                for lock in self.cache.glob(where)
                if not is_free(lock)
            ],
            "half-written": [str(path) for path in (self.project / "build").glob(".*")],
        }
        return {kind: what for kind, what in left.items() if what}

    def is_clean(self) -> bool:
        """Wait until nothing is left over, for a while; show what is."""
        deadline = time.monotonic() + PATIENCE
        while left := self.left_over():
            if time.monotonic() > deadline:
                print(json.dumps(left, indent=1))
                return False
            time.sleep(0.2)
        return True


def is_free(lock: Path) -> bool:
    """Say whether nobody holds a lock."""
    try:
        with FileLock(lock, timeout=0):
            return True
    except Timeout:
        return False


def finished(command: subprocess.Popen[str]) -> Completed:
    """Wait for a command."""
    out, err = command.communicate(timeout=COMMAND_TIMEOUT)
    assert isinstance(command.args, Sequence)
    words = tuple(str(word) for word in command.args)
    return Completed(argv=words, returncode=command.returncode, stdout=out, stderr=err)


@contextmanager
def own_engine(engine: Engine, root: Path) -> Iterator[Site]:
    """Have a private engine with the base image below an empty directory, its data on a small disk of their own."""
    shared = engine_state.layout()
    private_engine._programs(shared)
    base, docker = root / "base.tar", root / "bin/docker"
    engine.cli("save", "--output", base, ensure_base_image(engine, DEFAULT_BASE_IMAGE), timeout=120)
    docker.parent.mkdir()
    docker.write_text(NO_ENGINE)
    docker.chmod(0o755)
    (root / "scratch").mkdir()
    variables = {
        "GREENROOM_CACHE_DIR": str(root / "cache"),
        "TMPDIR": str(root / "scratch"),
        "PATH": f"{docker.parent}:{os.environ['PATH']}",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        for name in ("DOCKER_HOST", "DOCKER_CONTEXT"):
            patch.delenv(name, raising=False)
        own = engine_state.layout()
        own.directory.mkdir(parents=True)
        shutil.copytree(shared.directory / "packages", own.directory / "packages", symlinks=True, copy_function=_link)
        for current in shared.directory.glob("*.current"):
            shutil.copy(current, own.directory)
        own.data_root.mkdir()
        run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", own.data_root], changes=True, timeout=30)
        try:
            find_engine().cli("load", "--quiet", "--input", base, changes=True, timeout=120)
            yield Site(cache=root / "cache", scratch=root / "scratch", project=root / "project", variables=variables)
        finally:
            stop_engine()
            run(["umount", own.data_root], changes=True, timeout=30)
        assert engine_state.own_processes(own) == {}
        assert engine_state.own_mounts(own) == []
        shutil.rmtree(root)


@pytest.fixture(scope="module")
def site(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """An engine and a project, with what an undisturbed build has shown."""
    with own_engine(engine, tmp_path_factory.mktemp("interruption")) as place:
        place.renew()
        succeeded(place.command("lock", "--project", place.project))
        succeeded(finished(place.start()))
        place.renew()
        began, seen = time.monotonic(), []
        command = place.start()
        while command.poll() is None:
            if place.buildx():
                seen.append(time.monotonic() - began)
            time.sleep(0.05)
        whole = (0.0, time.monotonic() - began)
        succeeded(finished(command))
        lives = {victim: (seen[0], seen[-1]) if victim == "buildx" else whole for victim in MOMENTS}
        mounts = frozenset(engine_state.own_mounts(engine_state.layout()))
        measured = dataclasses.replace(place, lives=lives, mounts=mounts)
        assert measured.is_clean()
        yield measured


def interrupted(site: Site, victim: str, part: float) -> Completed | None:
    """Start a build, kill the victim at its moment, and return how the build ended; None when the victim was not there."""
    site.renew()
    came, went = site.lives[victim]
    command = site.start()
    while victim == "buildx" and command.poll() is None and not site.buildx():
        time.sleep(0.01)
    time.sleep(part * (went - came))
    finders: dict[str, Callable[[], int | None]] = {
        "buildx": site.buildx,
        "engine": lambda: daemon(engine_state.layout()),
    }
    pid = finders[victim]() if victim in finders else command.pid
    killed = command.poll() is None
    if killed and pid:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    done = finished(command)
    # It may have been about to end by itself. An engine that was killed before it was used has been started again.
    killed = killed and pid is not None and (done.returncode != 0 or victim == "engine")
    print(f"{victim}: {'killed' if killed else 'too late'}, after {part:.2f} of {went - came:.1f} s")
    return done if killed else None


@pytest.mark.parametrize(("victim", "part"), drawn())
def test_after_a_kill_the_next_run_converges_and_nothing_is_left(site: Site, victim: str, part: float) -> None:
    if victim.endswith("before"):
        stop_engine()
    # A build may be quicker than the one that was measured, and the victim gone: then the moment was none.
    tries = (interrupted(site, victim, part * 0.8**times) for times in range(6))
    done = next((each for each in tries if each), None)
    assert done, "every build has ended before its moment"
    if victim.startswith("greenroom"):
        assert done.returncode == -signal.SIGKILL
    elif done.returncode:
        line = error_line(done)
        assert done.returncode == {"buildx": 4, "engine": 3}[victim], line
        print(line)
    with suppress(EngineError):
        print("what the killed run has left:", site.left_over())

    again = succeeded(finished(site.start()))

    assert again.stdout.splitlines()[-1].endswith(" passed, 0 failed")
    assert json.loads((site.project / "build/verify.json").read_text())["ok"] is True
    assert site.is_clean()


def package(project: Path, line: str) -> Path:
    """Write a project that is a package whose build runs a line of shell, and does no more."""
    write_project(project, actors={"job.Only": ["a"]}, extras=EXTRAS)
    backend = "import subprocess\ndef build_wheel(*arguments):\n    subprocess.run(['bash', '-c', LINE], check=True)\n"
    (project / "backend.py").write_text(backend.replace("LINE", repr(line)))
    settings = (project / "pyproject.toml").read_text().replace("package = false\n", "")
    system = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (project / "pyproject.toml").write_text(system + settings)
    return project


def test_a_silent_build_is_ended_by_the_next_command_when_its_own_was_killed(site: Site, tmp_path: Path) -> None:
    project = package(tmp_path / "silent", "sleep 7004")
    succeeded(site.command("lock", "--project", project))
    silent = site.start(project=project, tag="silent:1")
    wait_for("sleep 7004")
    client = site.buildx()

    succeeded(finished(site.start()))
    assert silent.poll() is None
    assert site.buildx() == client, "a living command's build goes on"

    silent.kill()
    finished(silent)
    time.sleep(1)
    assert site.buildx() == client, "it does not notice"
    succeeded(finished(site.start()))
    assert site.is_clean()
    assert not any("sleep 7004" in line for line in command_lines())


def test_a_step_that_fails_inside_of_a_shell_s_pipeline(site: Site, tmp_path: Path) -> None:
    project = package(
        tmp_path / "failing", "set -o pipefail; (echo compiling; echo no compiler here >&2; exit 3) | cat"
    )
    succeeded(site.command("lock", "--project", project))
    done = finished(site.start(project=project, tag="failing:1"))
    assert (done.returncode, done.stdout) == (4, "")
    line = error_line(done)
    print(line)
    assert "step [project 2/2]" in line
    assert site.is_clean()


def test_builds_at_once(site: Site, tmp_path: Path) -> None:
    other = tmp_path / "other"
    site.renew(other)
    shutil.copy(site.project / "uv.lock", other)
    site.renew()
    at_once = [site.start(), site.start(project=other), site.start(project=other, tag="other:1")]
    for command in at_once:
        succeeded(finished(command))
    succeeded(site.command("verify", "--project", other, "--image", "other:1"))
    # Of two builds of one tag it is one's image, whole.
    codes = [site.command("verify", "--project", each, "--image", TAG).returncode for each in (site.project, other)]
    assert sorted(codes) == [0, 1]
    assert site.is_clean()


def test_a_disk_that_is_full_while_a_step_installs(site: Site) -> None:
    unchecked = dataclasses.replace(site, variables={**site.variables, "GREENROOM_SKIP_DISK_CHECK": "1"})
    # What is installed then is fetched already: there is room for those files and not for what they hold.
    site.renew(extras=list(EXTRAS))
    succeeded(finished(site.start()))
    site.renew(extras=list(EXTRAS)[1:])
    filler = fill(engine_state.layout().data_root, leave=1_500_000)
    try:
        done = finished(unchecked.start())
    finally:
        filler.unlink()
    print(error_line(done))
    assert (done.returncode, done.stdout) == (4, "")
    assert "no space left on device" in error_line(done).lower()
    succeeded(finished(site.start()))
    assert site.is_clean()


def test_what_a_killed_verification_has_not_started_is_removed(site: Site) -> None:
    engine = find_engine()
    engine.cli("tag", TAG, f"{TAG}-unverified", changes=True)
    for program_of_it in ("/nonexistent", "/bin/true"):
        engine.cli("create", "--entrypoint", program_of_it, f"{TAG}-unverified", changes=True)
    site.renew()
    succeeded(finished(site.start()))
    (someones,) = engine.cli("ps", "--all", "--quiet", "--filter", "status=created").stdout.split()
    engine.cli("rm", someones, changes=True)
    assert site.is_clean()
