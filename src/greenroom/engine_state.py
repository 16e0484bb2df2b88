"""What the private engine has on this machine: its directories, programs, processes and mounts.

- A process counts as ours when the file it runs is one of our packages' *and* its arguments name our
  directories. Pid files are never trusted: after a crash the number may belong to anyone.
- A mount counts as ours when it is below our directories.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from greenroom.errors import EngineError
from greenroom.files import cache_dir
from greenroom.process import ProcessError, run

DAEMONS = frozenset({"dockerd", "containerd", "containerd-shim-runc-v2", "runc"})
STOP_TIMEOUT = 20.0
# sun_path holds 108 bytes with the closing zero (unix(7)).
LONGEST_SOCKET = 107


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where one private engine keeps what it has.

    Attributes:
        directory: everything but sockets and runtime state.
        run: sockets and runtime state.
    """

    directory: Path
    run: Path

    @property
    def socket(self) -> Path:
        """The socket that the engine answers on."""
        return self.run / "docker.sock"

    @property
    def host(self) -> str:
        """The engine's DOCKER_HOST."""
        return f"unix://{self.socket}"

    @property
    def exec_root(self) -> Path:
        """The daemon's runtime state."""
        return self.run / "exec"

    @property
    def data_root(self) -> Path:
        """Images, containers and build cache."""
        return self.directory / "data"

    @property
    def log(self) -> Path:
        """What the daemon writes; one start's worth."""
        return self.directory / "dockerd.log"

    @property
    def config(self) -> Path:
        """The command line's DOCKER_CONFIG."""
        return self.directory / "config"


@dataclass(frozen=True, kw_only=True)
class Programs:
    """The unpacked packages.

    Attributes:
        root: the directory that they were unpacked into.
    """

    root: Path

    @property
    def path(self) -> str:
        """A PATH that finds these programs first."""
        own = f"{self.root}/usr/bin:{self.root}/usr/sbin"
        return f"{own}:{os.environ.get('PATH', '/usr/bin:/bin')}"

    def find(self, name: str) -> Path:
        """Return a program's path."""
        for directory in ("usr/bin", "usr/sbin", "bin", "sbin"):
            if (path := self.root / directory / name).is_file():
                return path
        return self.root / "usr/bin" / name


def layout() -> Layout:
    """Return the layout of the private engine below the current cache directory."""
    # Resolved: the kernel tells processes' and mounts' paths without links.
    directory = cache_dir().resolve() / "engine"
    own = directory / "run"
    # The longest socket below it is containerd's. Where the cache directory is too deep for that, a directory in
    # /run (or the temporary one) named by a hash of it serves instead.
    if len(os.fsencode(own / "exec/containerd/containerd.sock.ttrpc")) > LONGEST_SOCKET:
        base = Path("/run") if os.access("/run", os.W_OK) else Path(tempfile.gettempdir())
        own = base / f"greenroom-{hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]}"
    return Layout(directory=directory, run=own)


def own_processes(place: Layout) -> dict[int, str]:
    """Return the processes of this private engine: name by pid, the daemon first.

    A process is the engine's when its executable is below our packages (proc(5): /proc/<pid>/exe, with
    " (deleted)" after a rebuild) and an argument names our directories.
    """
    own = (str(place.run), str(place.data_root))
    packages = f"{place.directory}/packages/"
    found = {}
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            executable = str((process / "exe").readlink()).removesuffix(" (deleted)")
            arguments = os.fsdecode((process / "cmdline").read_bytes()).split("\0")
            name = executable.removeprefix(packages).rpartition("/")[2]
            ours = executable.startswith(packages) and name in DAEMONS
            if ours and any(directory in argument for directory in own for argument in arguments):
                found[int(process.name)] = name
    return dict(sorted(found.items(), key=lambda item: (item[1] != "dockerd", item[0])))


def own_mounts(place: Layout, mountinfo: str | None = None) -> list[Path]:
    """Return what is mounted below the engine's directories, the innermost and latest first.

    Args:
        place: the engine's layout.
        mountinfo: content of /proc/self/mountinfo; read when None.
    """
    text = Path("/proc/self/mountinfo").read_text() if mountinfo is None else mountinfo
    found = []
    for line in text.splitlines():
        root, escaped = line.split(" ")[3:5]
        # Blanks and backslashes are written as octal escapes (proc(5)).
        point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), escaped))
        # A whole file system on the data directory is a disk that someone gave it. dockerd's own mount there shows
        # the directory to itself.
        disk = point == place.data_root and root == "/"
        if not disk and any(point.is_relative_to(own) for own in (place.run, place.data_root)):
            found.append(point)
    return found[::-1]


def remove_left_overs(place: Layout, programs: Programs) -> None:
    """End what is left of this engine, unmount and remove its runtime state; its data stays."""
    _end(place, {"dockerd"}, grace=STOP_TIMEOUT)
    _end_containers(place, programs)
    _end(place, DAEMONS, grace=5)
    for _ in range(3):
        for point in own_mounts(place):
            with contextlib.suppress(ProcessError):
                run(["umount", point], changes=True, timeout=30)
        if not own_mounts(place):
            break
        time.sleep(0.5)
    # Removing a tree through a mount would delete what is mounted.
    if left := own_mounts(place):
        raise EngineError(f"{left[0]} cannot be unmounted", cause="a process uses it", next_step=f"fuser -vm {left[0]}")
    for left_over in (*_bundles(place), place.run):
        if left_over.exists():
            shutil.rmtree(left_over)


def _end(place: Layout, names: Collection[str], *, grace: float) -> None:
    """End our processes of these names: SIGTERM once (a third makes dockerd give up), SIGKILL after `grace` seconds."""
    pids: list[int] = []
    for number in (signal.SIGTERM, signal.SIGKILL):
        pids = [pid for pid, name in own_processes(place).items() if name in names]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + grace
        while pids and time.monotonic() < deadline:
            time.sleep(0.1)
            alive = own_processes(place)
            pids = [pid for pid in pids if pid in alive]
    if pids:
        raise EngineError(
            f"process {pids[0]} of the private engine does not end",
            cause="it waits for a disk",
            next_step=f"kill -9 {pids[0]}",
        )


def _end_containers(place: Layout, programs: Programs) -> None:
    """Delete the containers and build steps that a killed daemon left running."""
    containers: list[tuple[Path | None, str]] = [
        (state.parent.parent, state.parent.name) for state in place.exec_root.glob("runtime-runc/*/*/state.json")
    ]
    # Build steps are in runc's own default directory. Their names are random, and only ours are asked for.
    containers += [(None, bundle.name) for bundle in _bundles(place)]
    for root, name in containers:
        where = ["--root", str(root)] if root else []
        # What cannot be ended keeps its mount, and that is reported.
        with contextlib.suppress(ProcessError):
            run([programs.find("runc"), *where, "delete", "--force", name], changes=True, timeout=30)


def _bundles(place: Layout) -> list[Path]:
    """Return the directories of build steps; BuildKit removes a step's when it ends."""
    return [file.parent for file in place.data_root.glob("buildkit/executor/*/config.json")]
