"""The private engine: a container engine of our own where none answers.

- It runs from Debian's packages, unpacked (see `debian`), with its configuration, data, socket and log below
  `engine` in the cache directory. Nothing on the system is configured: no bridge, no iptables rule, no
  forwarding; containers use the host's network or none.
- One lock guards starting and stopping, so that two commands at once share one engine.
- What a killed engine leaves (containerd, containers, mounts, socket) is ended and removed before a start.
- The daemon is the one process not started through `run()`: it must outlive the command.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import threading
import time

from greenroom import debian
from greenroom.console import say
from greenroom.engine_state import Layout, Programs, layout, own_processes, remove_left_overs
from greenroom.errors import EngineError
from greenroom.files import write_aside
from greenroom.locks import held
from greenroom.process import ProcessError, is_dry_run, run

SUITE = "trixie"
PACKAGES = ("containerd", "docker-buildx", "docker-cli", "docker.io", "tini")
# Debian 13's runc wants a newer glibc than Debian 12 has, so runc is the host's own suite's. Whatever shared
# libraries these link to, apt links to as well; `_check_programs` says so where that should fail.
HOST_PACKAGES = ("runc",)
PROGRAMS = ("dockerd", "containerd", "containerd-shim-runc-v2", "runc", "docker")

READY_TIMEOUT = 60.0

# The daemon outlives the command that starts it, so it gets what it needs and not the command's tokens.
DAEMON_VARIABLES = frozenset(
    name for variable in ("http_proxy", "https_proxy", "no_proxy", "all_proxy") for name in (variable, variable.upper())
) | {"HOME", "LANG", "SSL_CERT_DIR", "SSL_CERT_FILE", "TMPDIR"}


def unusable() -> str | None:
    """Return why this host cannot have a private engine, or None when it can."""
    if not sys.platform.startswith("linux"):
        return f"{sys.platform} is not Linux"
    return debian.usable()


def start() -> tuple[Layout, Programs]:
    """Start the private engine unless it answers already.

    Returns:
        Its layout and programs.

    Raises:
        EngineError: the host cannot have one, its packages cannot be had, or it does not come up.
    """
    place = layout()
    if reason := unusable():
        raise EngineError(
            "no private engine can be started",
            cause=reason,
            next_step="install and start Docker with buildx, or run as root on Debian 12 or 13",
        )
    if not is_dry_run():
        place.directory.mkdir(parents=True, exist_ok=True)
        place.directory.chmod(0o700)
    with held(place.directory / "lock", EngineError):
        programs = _programs(place)
        write_aside(place.config / "config.json", _client_configuration(programs))
        if is_dry_run():
            print(shlex.join(_daemon_argv(place, programs)))
            return place, programs
        if _wait_ready(place, programs, own_processes(place)) is None:
            remove_left_overs(place, programs)
            _spawn(place, programs)
        return place, programs


def running() -> tuple[Layout, Programs] | None:
    """Return the private engine's layout and programs if it answers; nothing is started or changed."""
    place = layout()
    root = debian.unpacked(place.directory, "engine")
    if root is None or not place.socket.is_socket():
        return None
    programs = Programs(root=root)
    return (place, programs) if version(place, programs) else None


def stop() -> bool:
    """Stop the private engine and everything that it runs; its images stay.

    Returns:
        Whether one was running.

    Raises:
        EngineError: something of it cannot be ended or unmounted.
    """
    place = layout()
    if not place.directory.is_dir():
        return False
    with held(place.directory / "lock", EngineError):
        processes = own_processes(place)
        if is_dry_run():
            for pid, name in processes.items():
                print(f"kill {pid}  # {name}")
            return bool(processes)
        root = debian.unpacked(place.directory, "engine")
        remove_left_overs(place, Programs(root=root or place.directory / "packages"))
        return "dockerd" in processes.values()


def environment(place: Layout, programs: Programs) -> dict[str, str]:
    """Return the whole environment for calls of the engine's command line."""
    hidden = {"DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "DOCKER_TLS"}
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    return {**kept, "DOCKER_HOST": place.host, "DOCKER_CONFIG": str(place.config), "PATH": programs.path}


def version(place: Layout, programs: Programs) -> str | None:
    """Return the version that the engine tells, or None when it does not answer within 10 s."""
    argv = ["version", "--format", "{{.Server.Version}}"]
    try:
        return (
            run([programs.find("docker"), *argv], env=environment(place, programs), timeout=10).stdout.strip() or None
        )
    except ProcessError:
        return None


def _programs(place: Layout) -> Programs:
    wanted: dict[str, tuple[str, ...]] = {SUITE: PACKAGES}
    host = debian.host_codename() or SUITE
    wanted[host] = (*wanted.get(host, ()), *HOST_PACKAGES)
    try:
        return Programs(root=debian.ensure_unpacked(place.directory, "engine", wanted))
    except debian.PackagesError as error:
        raise EngineError(error.what, cause=error.cause, next_step=error.next_step) from error


def _check_programs(programs: Programs) -> None:
    for name in PROGRAMS:
        try:
            run([programs.find(name), "-v" if name == "containerd-shim-runc-v2" else "--version"], timeout=30)
        except ProcessError as error:
            raise EngineError(
                f"{name} of the private engine does not run: {error.completed.last_lines(2)}",
                cause="a shared library of it is missing",
                next_step=f"apt-get install the library, or remove {programs.root}",
            ) from error


def _client_configuration(programs: Programs) -> str:
    return json.dumps({"cliPluginsExtraDirs": [f"{programs.root}/usr/libexec/docker/cli-plugins"]}, indent=2) + "\n"


def _daemon_argv(place: Layout, programs: Programs) -> list[str]:
    return [
        str(programs.find("dockerd")),
        f"--host={place.host}",
        # Without it the host's /etc/docker/daemon.json would be read.
        f"--config-file={place.directory}/daemon.json",
        f"--data-root={place.data_root}",
        f"--exec-root={place.exec_root}",
        f"--pidfile={place.run}/docker.pid",
        "--bridge=none",
        "--iptables=false",
        "--ip6tables=false",
        # It would turn on forwarding for the whole host.
        "--ip-forward=false",
        # A group named docker may exist; this socket is root's alone.
        "--group=root",
        f"--init-path={programs.find('tini-static')}",
    ]


def _spawn(place: Layout, programs: Programs) -> None:
    _check_programs(programs)
    for older in place.directory.glob("packages/engine-*"):
        # No daemon runs, so none needs them.
        if older != programs.root:
            shutil.rmtree(older)
    place.run.mkdir(mode=0o700, exist_ok=True)
    found = place.run.lstat()
    # In a shared directory someone else may have made it first.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise EngineError(f"{place.run} is not ours", cause="someone else made it", next_step=f"remove {place.run}")
    place.run.chmod(0o700)
    write_aside(place.directory / "daemon.json", "{}\n")
    kept = {name: value for name, value in os.environ.items() if name in DAEMON_VARIABLES}
    say(f"starting the private engine {place.host}")
    began = time.monotonic()
    with place.log.open("wb") as log:
        daemon = subprocess.Popen(
            _daemon_argv(place, programs),
            env={**kept, "PATH": programs.path},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # Reaps the daemon should it end before we do.
    threading.Thread(target=daemon.wait, daemon=True).start()
    told = _wait_ready(place, programs, {daemon.pid: "dockerd"})
    if told is None:
        alive = daemon.pid in own_processes(place)
        remove_left_overs(place, programs)
        lines = [line for line in place.log.read_text(errors="replace").splitlines() if line.strip()]
        raise EngineError(
            f"the private engine {f'does not answer within {READY_TIMEOUT:.0f} s' if alive else 'ended at once'}: "
            f"{' / '.join(lines[-5:])}",
            cause="this machine does not let it mount, make namespaces or use cgroups",
            next_step=f"read {place.log}",
        )
    say(f"private engine {told} answers after {time.monotonic() - began:.1f} s")
    _check_started(place, programs)


def _check_started(place: Layout, programs: Programs) -> None:
    env = environment(place, programs)
    docker = programs.find("docker")
    try:
        run([docker, "buildx", "version"], env=env, timeout=30)
        driver = run([docker, "info", "--format", "{{.Driver}}"], env=env, timeout=30).stdout.strip()
    except ProcessError as error:
        raise EngineError(
            f"the private engine started, but {error}",
            cause="its packages are damaged",
            next_step=f"greenroom engine stop, then remove {programs.root}",
        ) from error
    if driver == "vfs":
        say("warning: the engine copies every layer (storage driver vfs): slow, and several times the space")


def _wait_ready(place: Layout, programs: Programs, processes: dict[int, str]) -> str | None:
    """Wait until the engine answers; None when no daemon is alive or the time is up."""
    daemons = [pid for pid, name in processes.items() if name == "dockerd"]
    deadline = time.monotonic() + READY_TIMEOUT
    while daemons and time.monotonic() < deadline:
        if place.socket.exists() and (told := version(place, programs)):
            return told
        time.sleep(0.1)
        daemons = [pid for pid in daemons if pid in own_processes(place)]
    return None
