"""The container engine: one that answers, else a private one.

- `DOCKER_HOST` or `DOCKER_CONTEXT` is an explicit choice: it answers, or that is an error. Nothing else is tried.
- Else the docker command line's current context is tried, then the private engine (see `private_engine`).
- An engine is usable when it answers within seconds and its command line has buildx.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from greenroom import engine_state, private_engine
from greenroom.console import say
from greenroom.errors import EngineError
from greenroom.process import DEFAULT_TIMEOUT, Completed, ProcessError, is_dry_run, run

if TYPE_CHECKING:
    from docker.client import DockerClient

PROBE_TIMEOUT = 10.0
"""Seconds for an engine to answer; a dead ssh:// or tcp:// host would hang for minutes."""

API_TIMEOUT = 120
"""Seconds for one answer of the engine's API."""

INSTALL = "install and start Docker with buildx (Debian: docker.io docker-buildx), or run as root on Debian 12 or 13"
VERSION = ("version", "--format", "{{.Server.Version}}")
REGISTRY_COMMANDS = frozenset({"login", "logout", "pull", "push"})


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine that answers.

    Attributes:
        host: its address, as in DOCKER_HOST.
        docker: path of the docker command line.
        environment: the whole environment for calls of the command line.
        private: whether it is our own engine.
        answers: False only in a dry run that would start it first.
    """

    host: str
    docker: str
    environment: Mapping[str, str]
    private: bool
    answers: bool = True

    def cli(
        self,
        *args: str | os.PathLike[str],
        changes: bool = False,
        stdin: bytes = b"",
        timeout: float = DEFAULT_TIMEOUT,
        check: bool = True,
        on_stderr: Callable[[bytes], None] | None = None,
    ) -> Completed:
        """Run the docker command line against this engine.

        Args:
            args: what follows `docker`.
            changes: whether it changes anything (see `process.run`).
            stdin: bytes for its standard input.
            timeout: seconds until it is ended.
            check: raise on an exit code other than 0.
            on_stderr: called with each chunk of stderr.

        Returns:
            The ended command.

        Raises:
            ProcessError: it failed (with `check`), did not end in time, or could not be started.
            EngineError: it failed, and the engine does not answer any more.
        """
        env = dict(self.environment)
        if args and args[0] in REGISTRY_COMMANDS:
            # The private configuration only serves to find buildx; logins are in the user's own.
            env.pop("DOCKER_CONFIG", None)
            if own := os.environ.get("DOCKER_CONFIG"):
                env["DOCKER_CONFIG"] = own
        try:
            return run(
                [self.docker, *args],
                # In a dry run an engine that is not there yet cannot be asked either.
                changes=changes or not self.answers,
                env=env,
                stdin=stdin,
                timeout=timeout,
                check=check,
                on_stderr=on_stderr,
            )
        except ProcessError as error:
            # What a registry refuses is told as that.
            if args[0] in REGISTRY_COMMANDS:
                raise
            # An engine that has gone is neither a build step's fault nor an image's.
            try:
                run([self.docker, *VERSION], env=self.environment, timeout=PROBE_TIMEOUT)
            except ProcessError:
                raise self._gone(f"docker {args[0]}: {error.completed.last_lines(1) or error.reason}") from error
            raise

    def _gone(self, said: str) -> EngineError:
        return EngineError(
            f"the engine {self.host} does not answer any more: {said}",
            cause="it was stopped or killed, or memory is short",
            next_step="run the same command again" if self.private else "start it, and run the same command again",
        )

    def client(self, timeout: float = API_TIMEOUT) -> DockerClient:
        """Return an SDK client for this engine; the caller closes it. Each answer is awaited for `timeout` seconds.

        Raises:
            EngineError: the engine does not answer any more.
        """
        # Imported here: commands that need no engine need not wait for it.
        from docker.client import DockerClient
        from docker.errors import DockerException

        over_ssh = self.host.startswith("ssh://")
        try:
            return DockerClient.from_env(
                environment=dict(self.environment), timeout=int(timeout), use_ssh_client=over_ssh
            )
        except DockerException as error:
            raise self._gone(str(error)) from error


def find_engine(*, start: bool = True) -> Engine:
    """Return an engine that answers.

    Args:
        start: bring up the private engine when none does.

    Returns:
        The engine.

    Raises:
        EngineError: there is none; it names the cause and what to install.
    """
    found = _existing_engine()
    if isinstance(found, Engine):
        return found
    for variable in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        if chosen := os.environ.get(variable):
            raise EngineError(
                f"{variable}={chosen} cannot be used",
                cause=found,
                next_step=f"start that engine, install docker-buildx, or unset {variable}",
            )
    if running := private_engine.running():
        return _private(*running)
    reason = private_engine.unusable()
    if not start or reason:
        raise EngineError(
            "no container engine can be used",
            cause=f"{found}; a private engine is not running" + (f" and cannot be started: {reason}" if reason else ""),
            next_step=INSTALL if reason else "greenroom engine start",
        )
    say(f"no engine to use ({found}): a private one is started")
    return start_engine()


def start_engine() -> Engine:
    """Start the private engine unless it runs.

    Returns:
        The private engine.

    Raises:
        EngineError: it cannot be started.
    """
    try:
        place, programs = private_engine.start()
    except OSError as error:
        raise EngineError(
            f"the private engine cannot be set up: {error}",
            cause="the disk is full or the cache directory is not writable",
            next_step="set GREENROOM_CACHE_DIR to a directory with some gigabytes of room",
        ) from error
    return _private(place, programs, answers=not is_dry_run() or private_engine.running() is not None)


def stop_engine() -> bool:
    """Stop the private engine and the containers that it runs. Its images stay.

    Returns:
        Whether one was running.

    Raises:
        EngineError: a process does not end or a mount stays.
    """
    return private_engine.stop()


def engine_status() -> dict[str, object]:
    """Return what `greenroom engine status` reports, ready for JSON. Nothing is started.

    Returns:
        `answers`, and when it does: `private`, `host`, `version`, `data_root`, and the private engine's `pid`. When not:
        `reason`.
    """
    try:
        engine = find_engine(start=False)
        info = json.loads(engine.cli("info", "--format", "{{json .}}", timeout=30).stdout)
    except (EngineError, ProcessError) as error:
        return {"answers": False, "private": False, "host": None, "version": None, "data_root": None, "pid": None} | {
            "reason": str(error)
        }
    processes = engine_state.own_processes(engine_state.layout()) if engine.private else {}
    return {
        "answers": True,
        "private": engine.private,
        "host": engine.host,
        "version": info.get("ServerVersion"),
        "data_root": info.get("DockerRootDir"),
        "pid": next((pid for pid, name in processes.items() if name == "dockerd"), None),
    }


def shell_commands(engine: Engine) -> list[str]:
    """Return the shell commands after which `docker`, buildx included, is this engine's."""
    commands = [f"export DOCKER_HOST={shlex.quote(engine.host)}"]
    if config := engine.environment.get("DOCKER_CONFIG"):
        commands.append(f"export DOCKER_CONFIG={shlex.quote(config)}")
    return [*commands, f'export PATH={shlex.quote(str(Path(engine.docker).parent))}:"$PATH"']


def _private(place: engine_state.Layout, programs: engine_state.Programs, *, answers: bool = True) -> Engine:
    return Engine(
        host=place.host,
        docker=str(programs.find("docker")),
        environment=private_engine.environment(place, programs),
        private=True,
        answers=answers,
    )


def _existing_engine() -> Engine | str:
    """Return the engine of DOCKER_HOST or of the current context, or why there is none to use."""
    docker = shutil.which("docker")
    if docker is None:
        return "the docker command line is not installed"
    environment = dict(os.environ)
    try:
        if not environment.get("DOCKER_HOST"):
            environment |= _context(docker)
        host = environment["DOCKER_HOST"]
        run([docker, *VERSION], env=environment, timeout=PROBE_TIMEOUT)
    except ProcessError as error:
        return f"{environment.get('DOCKER_HOST', docker)}: {error.completed.last_lines(1) or error.reason}"
    except (ValueError, LookupError, TypeError) as error:
        return f"{docker} context inspect tells something unknown: {error!r}"
    try:
        run([docker, "buildx", "version"], env=environment, timeout=PROBE_TIMEOUT)
    except ProcessError:
        return f"{host} answers, but {docker} has no buildx: install docker-buildx"
    return Engine(host=host, docker=docker, environment=environment, private=False)


def _context(docker: str) -> dict[str, str]:
    """Return the environment that makes the SDK and the command line use the current context alike."""
    told = run([docker, "context", "inspect"], timeout=PROBE_TIMEOUT).stdout
    context = json.loads(told)[0]
    environment = {"DOCKER_HOST": str(context["Endpoints"]["docker"]["Host"])}
    keys = Path(context.get("Storage", {}).get("TLSPath", "")) / "docker"
    if context.get("TLSMaterial") and keys.is_dir():
        environment |= {"DOCKER_CERT_PATH": str(keys), "DOCKER_TLS_VERIFY": "1"}
    return environment
