"""An environment in an actor of its own: the class is imported where the actor runs, not where it is created.

A driver lacks what its actors need (that is why they have venvs), so it cannot import their classes. It creates this
one instead, which both sides have, and which imports the class in the actor's process.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from greenroom.environments.interfaces import EnvironmentInterface, EnvironmentReturn, Message, MessageLog, Metadata


def resolve_class(fqn: str) -> Any:
    """Return a class by its fully-qualified name; one that was made a Ray actor class is unwrapped.

    Raises:
        ImportError: its module cannot be imported, or has no such class.
    """
    module, _, name = fqn.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except AttributeError as error:
        raise ImportError(f"{module} has no class {name}") from error
    wrapped = getattr(found, "__ray_metadata__", None)
    return wrapped.modified_class if wrapped is not None else found


class HostedEnvironment(EnvironmentInterface):
    """The environment of a class that is imported here.

    Args:
        actor_class_fqn: the class's fully-qualified name.
        env_config: its keyword arguments.

    Raises:
        Exception: whatever the import or the class raises.
    """

    def __init__(self, actor_class_fqn: str, env_config: Mapping[str, Any]) -> None:
        self.environment = resolve_class(actor_class_fqn)(**env_config)

    def step(self, message_logs: Sequence[MessageLog], metadata: Sequence[Metadata]) -> EnvironmentReturn:
        """Take one step of each conversation (see `EnvironmentInterface.step`)."""
        return self.environment.step(message_logs, metadata)  # type: ignore[no-any-return]

    def global_post_process_and_metrics(self, batch: EnvironmentReturn) -> tuple[EnvironmentReturn, dict[str, float]]:
        """Look at a finished batch as a whole (see `EnvironmentInterface`)."""
        return self.environment.global_post_process_and_metrics(batch)  # type: ignore[no-any-return]

    def new_episode(self, seed: int) -> tuple[Message, Metadata]:
        """Return an episode's first message and its metadata.

        Raises:
            AttributeError: this environment's episodes begin elsewhere, in a data set.
        """
        return self.environment.new_episode(seed)  # type: ignore[no-any-return]

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call any other method of the environment."""
        return getattr(self.environment, method)(*args, **kwargs)

    def where(self) -> dict[str, str | int]:
        """Return the process, interpreter and venv that this environment runs in."""
        return {"pid": os.getpid(), "executable": sys.executable, "prefix": sys.prefix}

    def shutdown(self) -> None:
        """Give back what the environment holds."""
        self.environment.shutdown()
