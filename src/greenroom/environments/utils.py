"""Environments by name: registering, creating, feeding and shutting them down.

Shut environments down before generation workers. A step that is under way may be waiting for a worker's answer; with the
workers gone first it waits until its own time limit, and whatever it started (a subprocess, a nested actor) is orphaned
when it is killed. The other way round, workers without environments have nothing left to answer.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, TypeVar

from greenroom.environments.hosted import HostedEnvironment

if TYPE_CHECKING:
    from greenroom.distributed.ray_actor_environment_registry import Registry

logger = logging.getLogger(__name__)

T = TypeVar("T")

DEFAULT_ENV_SHUTDOWN_TIMEOUT_SECONDS = 10.0
CREATE_TIMEOUT_SECONDS = 1800.0
"""How long creating an environment may take: its venv, the start of its actor, its constructor."""


class EnvRegistryEntry(TypedDict):
    """What is known of an environment.

    `actor_class_fqn` is its class; `default_processor` names the data processor that prepares its samples.
    """

    actor_class_fqn: str
    default_processor: NotRequired[str]


ENV_REGISTRY: dict[str, EnvRegistryEntry] = {
    "math": {"actor_class_fqn": "greenroom.environments.math_environment.MathEnvironment"},
    "math_multi_reward": {"actor_class_fqn": "greenroom.environments.math_environment.MathMultiRewardEnvironment"},
    "code": {"actor_class_fqn": "greenroom.environments.code_environment.CodeEnvironment"},
    "code_jaccard": {"actor_class_fqn": "greenroom.environments.code_jaccard_environment.CodeJaccardEnvironment"},
    "sliding_puzzle": {"actor_class_fqn": "greenroom.environments.sliding_puzzle.SlidingPuzzleEnvironment"},
    "gymnasium": {"actor_class_fqn": "greenroom.environments.gymnasium_environment.GymnasiumEnvironment"},
    "retriever": {"actor_class_fqn": "greenroom.environments.retriever.RetrieverEnvironment"},
    "reward_model": {"actor_class_fqn": "greenroom.environments.reward_model_environment.RewardModelEnvironment"},
    "llamacpp": {"actor_class_fqn": "greenroom.environments.llamacpp_environment.LlamaCppEnvironment"},
}
"""Name → what is known of the environment."""


def register_env(env_name: str, actor_class_fqn: str) -> None:
    """Register an environment.

    Args:
        env_name: the name by which it is created.
        actor_class_fqn: its class's fully-qualified name, which the manifest has too.

    Raises:
        ValueError: the name is taken.
    """
    if env_name in ENV_REGISTRY:
        raise ValueError(
            f"environment {env_name!r} is registered already, as {ENV_REGISTRY[env_name]['actor_class_fqn']}"
        )
    ENV_REGISTRY[env_name] = EnvRegistryEntry(actor_class_fqn=actor_class_fqn)


def create_env(
    env_name: str,
    env_config: Mapping[str, Any] | None = None,
    *,
    actor_options: Mapping[str, Any] | None = None,
    timeout: float = CREATE_TIMEOUT_SECONDS,
    registry: Registry | None = None,
) -> Any:
    """Create an environment: start its actor in its own virtual environment.

    Args:
        env_name: its registered name.
        env_config: the keyword arguments of its class.
        actor_options: Ray's options for the actor, such as `num_cpus`; a `runtime_env` adds to the environment's own. An
            actor that asks for no resources at all may be placed on a node that takes no work, which has no venv.
        timeout: seconds for making its venv on the nodes and for its constructor, together.
        registry: which interpreters actors have; greenroom's own when None.

    Returns:
        The actor's handle. Its methods are those of `HostedEnvironment`, called with `.remote()`.

    Raises:
        ValueError: no environment has this name; the known ones are named.
        RuntimeError: its constructor failed or took too long; the actor is gone.
        ActorEnvironmentError, VenvError: it has no virtual environment and none can be made.
    """
    if env_name not in ENV_REGISTRY:
        raise ValueError(f"unknown environment {env_name!r}; known: {', '.join(sorted(ENV_REGISTRY))}")
    # First our own package, which tells Ray how to start workers; environments themselves need no Ray.
    from greenroom.distributed.venvs import make_actor_runtime_env

    import ray  # isort: skip
    from ray.exceptions import GetTimeoutError, RayError  # isort: skip

    fqn = ENV_REGISTRY[env_name]["actor_class_fqn"]
    options = dict(actor_options or {})
    deadline = time.monotonic() + timeout
    runtime_env = make_actor_runtime_env(fqn, registry=registry, timeout=timeout)
    more = dict(options.pop("runtime_env", {}))
    runtime_env["env_vars"] |= more.pop("env_vars", {})
    # Typed Any: the type of a handle tells less than the class does.
    actor_class: Any = ray.remote(HostedEnvironment)
    handle = actor_class.options(**options, runtime_env={**more, **runtime_env}).remote(fqn, dict(env_config or {}))
    try:
        ray.get(handle.where.remote(), timeout=_left(deadline))
    except BaseException as error:
        # An interruption too: nobody has this handle.
        _kill(handle, env_name)
        if not isinstance(error, RayError | GetTimeoutError):
            raise
        late = isinstance(error, GetTimeoutError)
        raise RuntimeError(
            f"environment {env_name!r} ({fqn}) was not created: {f'no end within {timeout:.0f} s' if late else error}"
        ) from error
    return handle


def chunk_list_to_workers(to_chunk: Sequence[T], num_workers: int) -> list[list[T]]:
    """Divide a list among workers, in order and as evenly as equal pieces allow.

    Args:
        to_chunk: the list.
        num_workers: how many workers there are.

    Returns:
        `num_workers` lists. All but the last ones are of one length; the last may have fewer elements, or none. With
        more workers than elements the first have one each.

    Raises:
        ValueError: there is no worker.
    """
    if num_workers < 1:
        raise ValueError(f"num_workers must be at least 1, not {num_workers}")
    size = -(-len(to_chunk) // num_workers)
    return [list(to_chunk[number * size : (number + 1) * size]) for number in range(num_workers)]


def shutdown_environments(
    *env_maps: Mapping[str, Any] | None, timeout: float | None = DEFAULT_ENV_SHUTDOWN_TIMEOUT_SECONDS
) -> None:
    """Shut environments down, all at once and before generation workers (see the module).

    An actor is asked to shut down, awaited, and killed. A local object, which may own actors, is asked to shut
    itself down and is left alone when it does not. One that hangs, fails or is dead already stops no other. What
    happened to each is logged.

    Args:
        env_maps: name → actor handle or local environment; None for a map that does not exist. An environment that
            several maps or names hold is asked once.
        timeout: seconds that all of them have together; None waits for as long as it takes.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    actors, objects = _distinct(env_maps)
    # Objects first: each gets a thread of its own, so that one that hangs holds up nobody.
    requests = [_LocalShutdown(environment, names) for environment, names in objects]
    if actors:
        _shutdown_actors(actors, deadline)
    for request in requests:
        request.end(deadline)


def _distinct(env_maps: Sequence[Mapping[str, Any] | None]) -> tuple[list[tuple[Any, str]], list[tuple[Any, str]]]:
    """Return the actors and the local objects in env maps, each once, with their names."""
    # Where no ray was imported there is no handle of an actor either.
    handle_type = getattr(sys.modules.get("ray.actor"), "ActorHandle", ())
    actors: dict[Any, list[str]] = {}
    objects: dict[int, tuple[Any, list[str]]] = {}
    for env_map in env_maps:
        for name, environment in (env_map or {}).items():
            if environment is None:
                continue
            # A handle of Ray's client is of another type; what both have is a method to be called remotely.
            if isinstance(environment, handle_type) or hasattr(getattr(environment, "shutdown", None), "remote"):
                # Handles of one actor are equal, however often it was passed around.
                names = actors.setdefault(environment, [])
            else:
                names = objects.setdefault(id(environment), (environment, []))[1]
            if name not in names:
                names.append(name)
    return [(actor, ", ".join(names)) for actor, names in actors.items()], [
        (environment, ", ".join(names)) for environment, names in objects.values()
    ]


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _shutdown_actors(actors: Sequence[tuple[Any, str]], deadline: float | None) -> None:
    import ray
    from ray.exceptions import RayActorError, RayTaskError

    pending: dict[Any, tuple[Any, str]] = {}
    for actor, names in actors:
        # Whatever is wrong with one (no such method, another cluster's handle) must not keep the others running.
        try:
            pending[actor.shutdown.remote()] = (actor, names)
        except Exception as error:
            logger.warning("environment %s cannot be asked to shut down, it is killed: %s", names, error)
            _kill(actor, names)
    while pending:
        done, _ = ray.wait(list(pending), timeout=_left(deadline))
        if not done:
            break
        actor, names = pending.pop(done[0])
        try:
            ray.get(done[0])
            logger.info("environment %s has shut down", names)
        except RayTaskError as error:
            logger.warning("environment %s failed to shut down: %s", names, error.cause or error)
        except RayActorError:
            logger.warning("environment %s was dead already", names)
        except Exception as error:
            logger.warning("environment %s failed to shut down: %s", names, error)
        _kill(actor, names)
    for actor, names in pending.values():
        logger.warning("environment %s did not shut down in time: it is killed", names)
        _kill(actor, names)


def _kill(actor: Any, names: str) -> None:
    import ray

    try:
        ray.kill(actor)
    except Exception as error:
        # Whatever keeps this one from being killed must not keep the others running.
        logger.warning("environment %s cannot be killed: %s", names, error)


class _LocalShutdown:
    """A local environment's `shutdown()`, under way in a thread."""

    def __init__(self, environment: Any, names: str) -> None:
        self._environment = environment
        self._names = names
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"shutdown of {names}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._environment.shutdown()
        except BaseException as error:
            # Of any kind: the thread ends here, and the log says how.
            self._error = error

    def end(self, deadline: float | None) -> None:
        """Await the end and log what became of it."""
        self._thread.join(_left(deadline))
        if self._thread.is_alive():
            logger.warning("environment %s did not shut down in time: it is left alone", self._names)
        elif self._error is not None:
            logger.warning("environment %s failed to shut down: %r", self._names, self._error)
        else:
            logger.info("environment %s has shut down", self._names)
