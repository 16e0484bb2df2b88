"""The disk check: on real file systems, and only on disks that are this machine's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from greenroom.disk import Storage, _storage, check_room, engine_storage
from greenroom.engine import Engine
from greenroom.errors import BuildError
from greenroom.process import ProcessError, run

MIB = 1 << 20
CONTAINERD = [["driver-type", "io.containerd.snapshotter.v1"]]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    directory = tmp_path / "data"
    directory.mkdir()
    try:
        run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", directory], changes=True, timeout=30)
    except ProcessError as error:
        pytest.skip(f"no file system can be mounted here: {error.completed.last_lines(1)}")
    yield directory
    run(["umount", directory], changes=True, timeout=30)


def test_a_disk_that_is_too_small_is_refused_with_what_is_needed_and_where(small_disk: Path) -> None:
    assert check_room(small_disk, 7 * MIB) == 8 * MIB
    (small_disk / "image").write_bytes(b"x" * 2 * MIB)
    below = small_disk / "below"
    below.mkdir()
    with pytest.raises(BuildError) as caught:
        check_room(below, 7 * MIB)
    assert caught.value.exit_code == 4
    line = caught.value.one_line()
    assert "needs about 7.3 MB" in line and f"{below}, where the engine keeps its data, has 6.3 MB free" in line
    assert "GREENROOM_SKIP_DISK_CHECK=1" in line and "\n" not in line
    (small_disk / "image").unlink()
    check_room(below, 7 * MIB)


def test_another_machine_s_disk_is_not_looked_at() -> None:
    for host in ("tcp://127.0.0.1:9", "ssh://somewhere", "npipe:////./pipe/docker"):
        assert engine_storage(Engine(host=host, docker="docker", environment=os.environ, private=False)) is None


STORAGES: dict[str, tuple[dict[str, Any], bool | None]] = {
    "classic": ({"DriverStatus": [["Backing Filesystem", "extfs"], ["Supports d_type", "true"]]}, False),
    "containerd": ({"DriverStatus": CONTAINERD}, True),
    "containerd of its own": (
        {"DriverStatus": CONTAINERD, "Containerd": {"Address": "/var/run/docker/containerd/containerd.sock"}},
        True,
    ),
    "nothing said": ({"DriverStatus": None}, False),
    "in a virtual machine": ({"DockerRootDir": "/nonexistent/docker"}, None),
}


@pytest.mark.parametrize("case", STORAGES)
def test_what_an_engine_says_of_its_storage(tmp_path: Path, case: str) -> None:
    told, packed = STORAGES[case]
    found = _storage({"DockerRootDir": str(tmp_path), **told})
    assert found == (None if packed is None else Storage(directory=tmp_path, packed=packed))


def test_a_directory_that_may_not_be_entered_is_not_seen(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "data").mkdir(parents=True)
    closed.chmod(0)
    with contextlib.ExitStack() as after:
        after.callback(closed.chmod, 0o755)
        if os.geteuid() == 0:
            # Root enters every directory.
            os.seteuid(65534)
            after.callback(os.seteuid, 0)
        assert _storage({"DockerRootDir": str(closed / "data")}) is None
