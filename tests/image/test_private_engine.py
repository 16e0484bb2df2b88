"""The private engine and the base image, for real: started, killed, started again, stopped.

Every test that breaks something has an engine of its own below a temporary cache directory; only the downloaded
packages are shared with the usual one.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.image.support import copy_project, error_line, greenroom, succeeded

from greenroom import debian, engine_state, private_engine
from greenroom.base_image import ensure_base_image
from greenroom.engine import Engine, engine_status, find_engine, stop_engine
from greenroom.errors import BaseImageError, EngineError
from greenroom.process import run
from greenroom.project import DEFAULT_BASE_IMAGE

private = pytest.mark.skipif(
    private_engine.unusable() is not None, reason=f"no private engine here: {private_engine.unusable()}"
)

NO_ENGINE = """#!/bin/sh
case $1 in
context) echo '[{"Endpoints":{"docker":{"Host":"unix:///nonexistent.sock"}},"TLSMaterial":{}}]' ;;
*) echo "no engine" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No engine but a private one is found, whatever this machine has."""
    docker = tmp_path / "bin/docker"
    docker.parent.mkdir()
    docker.write_text(NO_ENGINE)
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{docker.parent}:{os.environ['PATH']}")
    for variable in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def place(alone: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[engine_state.Layout]:
    """An own cache directory that has the packages; its engine is stopped and removed afterwards."""
    shared = engine_state.layout()
    private_engine._programs(shared)
    # Deep enough that sockets do not fit below it, with a blank in its name.
    cache = tmp_path / ("deep " + "d" * 60)
    monkeypatch.setenv("GREENROOM_CACHE_DIR", str(cache))
    own = engine_state.layout()
    own.directory.mkdir(parents=True)
    shutil.copytree(shared.directory / "packages", own.directory / "packages", symlinks=True, copy_function=_link)
    for current in shared.directory.glob("*.current"):
        shutil.copy(current, own.directory)
    yield own
    stop_engine()
    assert engine_state.own_processes(own) == {}
    assert engine_state.own_mounts(own) == []
    shutil.rmtree(cache)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def daemon(place: engine_state.Layout) -> int:
    return next(pid for pid, name in engine_state.own_processes(place).items() if name == "dockerd")


def small_image(engine: Engine, directory: Path) -> str:
    """Import an image that holds a shell and `sleep` of this machine."""
    programs = ["/bin/sh", "/bin/sleep"]
    told = run(["ldd", *programs]).stdout.split()
    libraries = sorted({word for word in told if word.startswith("/") and ".so" in word})
    root = directory / "root"
    root.mkdir()
    run(["cp", "-L", "--parents", *programs, *libraries, root])
    run(["tar", "-C", root, "-cf", directory / "small.tar", "."])
    engine.cli("import", directory / "small.tar", "small:1", changes=True)
    return "small:1"


def wait_for(command: str) -> None:
    """Wait until a process with this in its command line runs, half a minute at most."""
    deadline = time.monotonic() + 30
    while not any(command in line for line in command_lines()):
        assert time.monotonic() < deadline, f"{command} does not run"
        time.sleep(0.1)


def command_lines() -> list[str]:
    lines = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with suppress(OSError):
                lines.append(os.fsdecode((process / "cmdline").read_bytes()).replace("\0", " ").strip())
    return lines


@pytest.fixture
def session_docker() -> str:
    """The command line of the engine that this machine has."""
    return find_engine().docker


@private
def test_two_commands_at_once_share_one_engine_that_outlives_them(place: engine_state.Layout) -> None:
    code = "from greenroom.engine import find_engine; print(find_engine().host)"
    starts = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    hosts = {start.communicate(timeout=120)[0].strip() for start in starts}
    assert hosts == {place.host}
    pid = daemon(place)
    assert list(engine_state.own_processes(place).values()).count("dockerd") == 1
    found = find_engine()
    assert (found.host, found.private, daemon(place)) == (place.host, True, pid)
    status = engine_status()
    assert (status["answers"], status["private"], status["pid"]) == (True, True, pid)
    assert status["data_root"] == str(place.data_root)
    assert "buildx" in found.cli("buildx", "version").stdout
    client = found.client()
    assert client.ping()
    client.close()
    assert place.run.stat().st_mode & 0o777 == 0o700


@private
def test_stop_leaves_no_process_mount_or_socket(place: engine_state.Layout, tmp_path: Path) -> None:
    engine = find_engine()
    image = small_image(engine, tmp_path)
    engine.cli("run", "--detach", "--stop-timeout", "1", "--network", "host", image, "sleep", "7001", changes=True)
    assert stop_engine() is True
    assert engine_state.own_processes(place) == {}
    assert engine_state.own_mounts(place) == []
    assert not place.run.exists()
    assert not any(line == "sleep 7001" for line in command_lines())
    assert stop_engine() is False
    assert engine_status()["answers"] is False


@private
def test_a_killed_engine_is_replaced_and_what_it_left_is_ended(place: engine_state.Layout, tmp_path: Path) -> None:
    engine = find_engine()
    image = small_image(engine, tmp_path)
    engine.cli("run", "--detach", "--network", "host", image, "sleep", "7002", changes=True)
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(f"FROM {image}\nRUN sleep 7003\n")
    build = subprocess.Popen(
        [engine.docker, "buildx", "build", "--network", "host", str(context)],
        env=dict(engine.environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for("sleep 7002")
    wait_for("sleep 7003")
    killed = daemon(place)
    os.kill(killed, signal.SIGKILL)
    assert build.wait(60) != 0
    assert any("sleep 7003" in line for line in command_lines()), "a build step outlives its daemon"

    again = find_engine()

    assert again.host == engine.host
    assert daemon(place) != killed
    assert not any("sleep 700" in line for line in command_lines())
    assert again.cli("image", "inspect", "--format", "{{.Id}}", image).stdout.startswith("sha256:")


@pytest.fixture(scope="module")
def base_archive(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default base image as a file, for engines of a test's own."""
    archive = tmp_path_factory.mktemp("base") / "base.tar"
    engine.cli("save", "--output", archive, ensure_base_image(engine, DEFAULT_BASE_IMAGE), timeout=120)
    return archive


@pytest.fixture
def small_disk(place: engine_state.Layout) -> Iterator[Path]:
    """The engine's data is on a disk of its own, of 1.5 GB."""
    place.data_root.mkdir()
    run(["mount", "-t", "tmpfs", "-o", "size=1500m", "tmpfs", place.data_root], changes=True, timeout=30)
    yield place.data_root
    stop_engine()
    run(["umount", place.data_root], changes=True, timeout=30)


def fill(disk: Path, *, leave: int) -> Path:
    """Make a file that leaves this many bytes of a disk."""
    filler = disk / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free - leave)
    return filler


@private
def test_a_build_without_room_is_refused_before_it_starts(
    base_archive: Path, small_disk: Path, tiny: Path, tmp_path: Path
) -> None:
    find_engine().cli("load", "--quiet", "--input", base_archive, changes=True, timeout=120)
    project = copy_project(tiny, tmp_path / "tiny")
    command = ["image", "--project", str(project), "--tag", "tiny:1"]
    filler = fill(small_disk, leave=60_000_000)

    refused = greenroom(*command)
    assert (refused.returncode, refused.stdout) == (4, "")
    said = error_line(refused)
    assert re.search(r"the build needs about [\d.]+ [MG]B of disk", said)
    assert f"and {small_disk}, where the engine keeps its data, has " in said
    assert "[plan " not in refused.stderr, "a build step has run"

    filler.unlink()
    assert re.search(rf"disk: .* {small_disk} has [\d.]+ [MG]B free", succeeded(greenroom(*command)).stderr)
    fill(small_disk, leave=60_000_000)
    # The image of this plan is there already: building it again needs nothing.
    succeeded(greenroom(*command))
    assert greenroom(*command, "--skip", "right").returncode == 4
    assert greenroom(*command, "--no-cache").returncode == 4
    succeeded(greenroom(*command, "--skip", "right", variables={"GREENROOM_SKIP_DISK_CHECK": "1"}))


@private
def test_a_stale_pid_file_and_socket_are_no_reason_to_end_anyone(place: engine_state.Layout) -> None:
    # Its arguments name our directories: only its executable tells that it is not ours.
    bystander = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)", f"--pidfile={place.run}/docker.pid"],
        stdin=subprocess.DEVNULL,
    )
    try:
        place.exec_root.mkdir(parents=True, mode=0o700)
        for file in (place.run / "docker.pid", place.exec_root / "containerd.pid"):
            file.write_text(str(bystander.pid))
        with socket.socket(socket.AF_UNIX) as left_over:
            left_over.bind(str(place.socket))
        assert find_engine().host == place.host
        assert daemon(place) != bystander.pid
        assert bystander.poll() is None
        assert stop_engine() is True
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@private
def test_a_daemon_that_ends_at_once_is_an_error_with_its_last_words(place: engine_state.Layout) -> None:
    place.data_root.write_text("not a directory")
    with pytest.raises(EngineError, match=re.escape(f"file '{place.data_root}'")) as caught:
        find_engine()
    assert caught.value.exit_code == 3
    assert str(place.log) in str(caught.value)
    assert not place.run.exists()
    place.data_root.unlink()


@private
def test_packages_unpacked_by_half_are_unpacked_again(tmp_path: Path) -> None:
    wanted = {private_engine.SUITE: ("mmdebstrap",)}
    directory = tmp_path / "with a blank"
    first = debian.ensure_unpacked(directory, "tool", wanted)
    program = first / "usr/bin/mmdebstrap"
    size = program.stat().st_size
    program.write_bytes(program.read_bytes()[: size // 2])
    killed = first.parent / ".aside-killed"
    killed.mkdir()
    assert debian.ensure_unpacked(directory, "tool", wanted) == first
    assert program.stat().st_size == size
    assert not killed.exists()
    stamp = (first / debian.STAMP).stat().st_mtime_ns
    assert debian.ensure_unpacked(directory, "tool", wanted) == first
    assert (first / debian.STAMP).stat().st_mtime_ns == stamp


@private
def test_packages_that_no_mirror_has(tmp_path: Path) -> None:
    with pytest.raises(debian.PackagesError, match="no-such-package"):
        debian.ensure_unpacked(tmp_path, "tool", {private_engine.SUITE: ("no-such-package",)})
    assert list((tmp_path).glob("packages/*")) == []


def test_a_dead_docker_host_is_an_error_and_starts_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, session_docker: str
) -> None:
    monkeypatch.setenv("PATH", f"{Path(session_docker).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("GREENROOM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/dead.sock")
    with pytest.raises(EngineError, match="Cannot connect") as caught:
        find_engine()
    assert caught.value.exit_code == 3
    assert f"DOCKER_HOST=unix://{tmp_path}/dead.sock" in str(caught.value)
    assert not (tmp_path / "cache").exists()


@private
def test_without_root_there_is_no_private_engine(alone: None, tmp_path: Path) -> None:
    # Everything is imported before the rights are given up: what nobody may read need not be read then.
    code = (
        "import os, sys, docker, greenroom.engine as engine\n"
        "from greenroom.errors import GreenroomError\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try:\n"
        "    engine.find_engine()\n"
        "except GreenroomError as error:\n"
        "    print(error)\n"
        "    sys.exit(error.exit_code)\n"
    )
    tmp_path.chmod(0o755)
    env = {**os.environ, "GREENROOM_CACHE_DIR": str(tmp_path / "cache"), "HOME": "/nonexistent"}
    ended = run([sys.executable, "-c", code], env=env, check=False, timeout=60)
    assert ended.returncode == 3, ended
    assert "uid 65534 is not root" in ended.stdout
    assert "docker-buildx" in ended.stdout
    assert len(ended.stdout.splitlines()) == 1
    assert not (tmp_path / "cache").exists()


def test_a_base_image_that_cannot_be_had() -> None:
    # Nothing listens on the discard port of this machine.
    with pytest.raises(BaseImageError, match="localhost:9/greenroom/none:1") as caught:
        ensure_base_image(find_engine(), "localhost:9/greenroom/none:1")
    assert caught.value.exit_code == 6
    assert "\n" not in str(caught.value)


@private
def test_the_bootstrapped_base_is_made_once_and_serves_any_user() -> None:
    engine = find_engine()
    reference = ensure_base_image(engine, DEFAULT_BASE_IMAGE)
    image = engine.cli("image", "inspect", "--format", "{{.Id}}", reference).stdout
    began = time.monotonic()
    assert ensure_base_image(engine, DEFAULT_BASE_IMAGE) == reference
    assert time.monotonic() - began < 10
    assert engine.cli("image", "inspect", "--format", "{{.Id}}", reference).stdout == image
    assert ensure_base_image(engine, reference) == reference
    flags = ["--rm", "--init", "--network", "none", "--read-only", "--user", "64321:64321"]
    code = "import ssl, sqlite3, ctypes, lzma, venv; print(ssl.create_default_context().cert_store_stats()['x509'] > 9)"
    assert engine.cli("run", *flags, reference, "python3", "-c", code, changes=True).stdout == "True\n"
    flags = ["--rm", "--network", "none", "--tmpfs", "/tmp:exec"]
    shell = "python3 -m venv /tmp/v && /tmp/v/bin/pip --version && ls -A /var/log/apt /var/lib/apt/lists/partial /var/cache/apt/archives/partial"
    assert engine.cli("run", *flags, reference, "sh", "-c", shell, changes=True).stdout.startswith("pip ")
