"""Which interpreter each actor is started with: its `py_executable`.

- The prebuilt venv's interpreter, when the venv's stamp says that it is complete and what the table and the lock say.
- Else `uv run --locked --extra … --directory <root>`: the same venv, made when it is needed.
- The driver's interpreter for an actor whose entry is None, and for every actor when
  `GREENROOM_PY_EXECUTABLES_SYSTEM` is 1.

Importing this module reads the manifest's table and fails when an entry cannot be right. Other projects make a
`Registry` of their own table.
"""

from __future__ import annotations

import logging
import os
import platform
import shlex
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path

from greenroom.actor_environments import ACTOR_ENVIRONMENTS, normalised
from greenroom.distributed.drift import Closures, source_closures, stamp_differences, summary
from greenroom.distributed.lock_reader import UnreadableLockError
from greenroom.stamps import prebuilt_directory, read_stamp

logger = logging.getLogger(__name__)

SYSTEM_FLAG = "GREENROOM_PY_EXECUTABLES_SYSTEM"


class ActorEnvironmentError(LookupError):
    """An actor has no interpreter to start with, or an entry of the table cannot be right."""


def source_root() -> Path | None:
    """Return the directory of this project's sources, or None when the package is installed without them."""
    root = Path(__file__).parents[3]
    return root if (root / "pyproject.toml").is_file() else None


def declared_extras(root: Path | None, distribution: str = "greenroom") -> frozenset[str]:
    """Return the extras that a project declares, normalised: in its sources, else in its installed metadata."""
    if root is not None:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
        return frozenset(map(normalised, project.get("optional-dependencies", {})))
    try:
        return frozenset(map(normalised, metadata(distribution).get_all("Provides-Extra") or []))
    except PackageNotFoundError:
        return frozenset()


def uv_run(extras: Iterable[str], root: Path | None) -> str:
    """Return the command that runs Python in a venv made from the lock, as Ray takes it for `py_executable`."""
    words = ["uv", "run", "--locked", *(word for extra in extras for word in ("--extra", extra))]
    return shlex.join([*words, "--directory", str(root)] if root else words)


class PY_EXECUTABLES:
    """Commands that start Python: the driver's own, and one for each extra of this project."""

    SYSTEM = sys.executable
    BASE = uv_run([], source_root())
    MATH = uv_run(["math"], source_root())
    GYMNASIUM = uv_run(["gymnasium"], source_root())
    RETRIEVER = uv_run(["retriever"], source_root())
    REWARD = uv_run(["reward"], source_root())
    LLAMACPP = uv_run(["llamacpp"], source_root())
    MATH_REWARD = uv_run(["math", "reward"], source_root())


class Registry:
    """The interpreters of a table's actors.

    Args:
        table: actor → extras in the order in which they are given to uv; None: no virtual environment.
        root: the project's directory, with `pyproject.toml` and `uv.lock`; None where there are no sources.
        declared: the extras that the project declares, normalised.
        venv_dir: where an image's venvs are; `$VENV_DIR` or `/opt/ray_venvs` when None.
        system: every actor gets the driver's interpreter; by `GREENROOM_PY_EXECUTABLES_SYSTEM` when None.

    Raises:
        ActorEnvironmentError: an entry is neither None nor a list of declared extras; actor and entry are named.
    """

    def __init__(
        self,
        table: Mapping[str, Sequence[str] | None],
        *,
        root: Path | None,
        declared: Iterable[str],
        venv_dir: Path | None = None,
        system: bool | None = None,
    ) -> None:
        _check_table(table, frozenset(declared))
        self.table = dict(table)
        self.root = root
        self.venv_dir = venv_dir or prebuilt_directory()
        self.system = os.environ.get(SYSTEM_FLAG) == "1" if system is None else system

    @classmethod
    def of_project(
        cls, table: Mapping[str, Sequence[str] | None], *, root: Path | None = None, distribution: str = ""
    ) -> Registry:
        """Return the registry of another project.

        Args:
            table: its manifest's `ACTOR_ENVIRONMENTS`.
            root: the directory of its `pyproject.toml` and `uv.lock`; None where there are no sources, as in an image.
            distribution: its distribution's name; what declares its extras where there are no sources.

        Raises:
            ActorEnvironmentError: an entry cannot be right, or neither root nor distribution is given.
        """
        if root is None and not distribution:
            raise ActorEnvironmentError(
                "nothing says which extras are declared | next: give root= or distribution= to Registry.of_project"
            )
        return cls(table, root=root, declared=declared_extras(root, distribution))

    def py_executable(self, actor: str) -> str:
        """Return an actor's `py_executable`.

        Args:
            actor: its fully-qualified class name.

        Raises:
            ActorEnvironmentError: the table does not have it, or it has neither a venv nor sources to make one from.
        """
        if actor not in self.table:
            raise ActorEnvironmentError(
                f"no environment is registered for {actor} | likely cause: it is new, or its module was renamed | "
                "next: add it to ACTOR_ENVIRONMENTS in actor_environments.py, with its extras or None"
            )
        extras = self.table[actor]
        if extras is None or self.runs_in_driver(actor):
            return sys.executable
        problem = self.prebuilt_problem(actor)
        if problem is None:
            return str(self.interpreter(actor))
        if self.root is None:
            raise ActorEnvironmentError(
                f"{actor} cannot be started: {problem}, and there are no sources to make its venv from | likely "
                "cause: the image was built without it (--skip, --stage) | next: build the image with it"
            )
        if self.venv_dir.is_dir():
            logger.warning("%s starts by uv run: %s", actor, problem)
        return uv_run(extras, self.root)

    def runs_in_driver(self, actor: str) -> bool:
        """Return whether an actor is started with the driver's interpreter; KeyError for an unknown one."""
        return self.system or self.table[actor] is None

    def interpreter(self, actor: str) -> Path:
        """Return where the interpreter of an actor's prebuilt venv is; it may not exist."""
        return self.venv_dir / actor / "bin" / "python"

    def prebuilt_problem(self, actor: str) -> str | None:
        """Return why an actor's prebuilt venv cannot be used; None when it can."""
        if not os.access(self.interpreter(actor), os.X_OK):
            return f"there is no venv at {self.venv_dir / actor}"
        try:
            stamp = read_stamp(self.venv_dir / actor)
            differences = stamp_differences(stamp, self.table[actor] or (), self._closures)
        except (ValueError, UnreadableLockError) as error:
            return str(error)
        if platform.machine() not in stamp.platform.split():
            differences.append(f"built for {stamp.platform}, this is {platform.machine()}")
        # Ray refuses to connect a driver and workers of two versions, of Python or of Ray.
        if stamp.python != platform.python_version():
            differences.append(f"built for Python {stamp.python}, the driver is {platform.python_version()}")
        built, drivers = stamp.versions.get("ray"), _version_of("ray")
        if built and drivers and built != drivers:
            differences.append(f"holds Ray {built}, the driver {drivers}")
        return f"{self.venv_dir / actor} is another one: {summary(differences)}" if differences else None

    @cached_property
    def _closures(self) -> Closures:
        return source_closures(self.root)

    def executables(self) -> dict[str, str]:
        """Return every actor that can be started here, with its `py_executable`."""
        found = {}
        for actor in self.table:
            try:
                found[actor] = self.py_executable(actor)
            except ActorEnvironmentError as error:
                logger.info("%s", error)
        return found


def _version_of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _check_table(table: Mapping[str, Sequence[str] | None], declared: frozenset[str]) -> None:
    for actor, extras in table.items():
        if extras is None:
            continue
        if not isinstance(extras, list) or not all(isinstance(extra, str) for extra in extras):
            raise ActorEnvironmentError(
                f"{actor} has {extras!r}, which is neither None nor a list of extras | next: write a list, such as "
                f"{list(extras) if isinstance(extras, tuple) else ['math']!r}, in actor_environments.py"
            )
        if undeclared := [extra for extra in extras if normalised(extra) not in declared]:
            raise ActorEnvironmentError(
                f"{actor} needs the extra {', '.join(undeclared)}, which is not declared | declared: "
                f"{', '.join(sorted(declared)) or 'none'} | next: correct actor_environments.py, or add it to "
                "[project.optional-dependencies]"
            )


REGISTRY = Registry(ACTOR_ENVIRONMENTS, root=source_root(), declared=declared_extras(source_root()))
ACTOR_ENVIRONMENT_REGISTRY: dict[str, str] = REGISTRY.executables()
"""Actor → its `py_executable`, for every actor that can be started here."""


def get_actor_python_env(actor_class_fqn: str) -> str:
    """Return an actor's `py_executable`.

    Args:
        actor_class_fqn: its fully-qualified class name.

    Raises:
        ActorEnvironmentError: it is not registered, or cannot be started here; the message says what to do.
    """
    if actor_class_fqn in ACTOR_ENVIRONMENT_REGISTRY:
        return ACTOR_ENVIRONMENT_REGISTRY[actor_class_fqn]
    return REGISTRY.py_executable(actor_class_fqn)
