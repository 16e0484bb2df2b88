"""What every environment offers: a batched `step`, metrics over a finished batch, and an end.

- State lives in the metadata that `step` takes and returns, never in the environment: any replica of an actor can
  continue any episode, and a lost actor loses nothing.
- A batch never fails because of one item. That item ends its episode with reward 0 and says why in `failures`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypedDict


class Message(TypedDict):
    """One turn of a conversation: its role ("system", "user", "assistant", "environment") and its text."""

    role: str
    content: str


MessageLog = Sequence[Message]
Metadata = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ItemReturn:
    """The outcome of one step of one conversation.

    Attributes:
        observation: what the environment answers, as the text of the next message.
        reward: the step's reward.
        terminated: whether the episode ends here.
        metadata: the state for the next step; None when there is none.
        next_stop_strings: strings at which generation of the next reply stops; None leaves that to the caller.
        answer: the answer read from the reply, if any.
        reward_parts: the named parts that `reward` is made of, where there is more than one.
        failure: why this item could not be judged; None when it was.
    """

    observation: str
    reward: float
    terminated: bool
    metadata: Metadata | None = None
    next_stop_strings: tuple[str, ...] | None = None
    answer: str | None = None
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    failure: str | None = None


@dataclass(frozen=True, kw_only=True)
class EnvironmentReturn:
    """The outcome of one step of a batch: one entry for each conversation, in the order given (see `ItemReturn`)."""

    observations: tuple[Message, ...]
    metadata: tuple[Metadata | None, ...]
    next_stop_strings: tuple[tuple[str, ...] | None, ...]
    rewards: tuple[float, ...]
    terminateds: tuple[bool, ...]
    answers: tuple[str | None, ...]
    reward_parts: tuple[Mapping[str, float], ...]
    failures: tuple[str | None, ...]

    @classmethod
    def from_items(cls, items: Sequence[ItemReturn]) -> EnvironmentReturn:
        """Return the batch made of these items."""
        return cls(
            observations=tuple(Message(role="environment", content=item.observation) for item in items),
            metadata=tuple(item.metadata for item in items),
            next_stop_strings=tuple(item.next_stop_strings for item in items),
            rewards=tuple(item.reward for item in items),
            terminateds=tuple(item.terminated for item in items),
            answers=tuple(item.answer for item in items),
            reward_parts=tuple(item.reward_parts for item in items),
            failures=tuple(item.failure for item in items),
        )


class EnvironmentInterface(ABC):
    """An environment that judges or answers a batch of conversations."""

    @abstractmethod
    def step(self, message_logs: Sequence[MessageLog], metadata: Sequence[Metadata]) -> EnvironmentReturn:
        """Take one step of each conversation.

        Args:
            message_logs: the conversations; each ends with the reply to act on.
            metadata: the state of each, in the same order.

        Returns:
            The outcomes, in the same order.

        Raises:
            ValueError: the two arguments differ in length.
        """

    def global_post_process_and_metrics(self, batch: EnvironmentReturn) -> tuple[EnvironmentReturn, dict[str, float]]:
        """Look at a finished batch as a whole.

        Args:
            batch: the batch.

        Returns:
            The batch, unchanged unless an environment overrides this, and its metrics: the number of items and, unless
            that is 0, the mean reward and the fractions (0 to 1) of ended episodes and of failed items.
        """
        count = len(batch.rewards)
        metrics = {"items": float(count)}
        if count:
            metrics["reward_mean"] = sum(batch.rewards) / count
            metrics["terminated_fraction"] = sum(batch.terminateds) / count
            metrics["failure_fraction"] = sum(failure is not None for failure in batch.failures) / count
        return batch, metrics

    def shutdown(self) -> None:  # noqa: B027 (most environments hold nothing)
        """Give back what the environment holds; it takes no steps afterwards. May be called twice."""


class ItemwiseEnvironment(EnvironmentInterface):
    """An environment that looks at one conversation at a time; subclasses write `step_item`."""

    parallel_items = 1
    """How many items `step` works on at the same time, in threads."""

    @abstractmethod
    def step_item(self, message_log: MessageLog, metadata: Metadata) -> ItemReturn:
        """Take one step of one conversation.

        Args:
            message_log: the conversation; it ends with the reply to act on.
            metadata: its state.

        Returns:
            The outcome.

        Raises:
            Exception: anything; `step` turns it into this item's failure.
        """

    def step(self, message_logs: Sequence[MessageLog], metadata: Sequence[Metadata]) -> EnvironmentReturn:
        """Take one step of each conversation (see `EnvironmentInterface.step`)."""
        pairs = list(zip(message_logs, metadata, strict=True))
        if self.parallel_items == 1:
            return EnvironmentReturn.from_items([self._guarded(pair) for pair in pairs])
        with ThreadPoolExecutor(self.parallel_items) as threads:
            return EnvironmentReturn.from_items(list(threads.map(self._guarded, pairs)))

    def _guarded(self, pair: tuple[MessageLog, Metadata]) -> ItemReturn:
        message_log, metadata = pair
        try:
            return self.step_item(message_log, metadata)
        except Exception as error:
            return failed_item(error, metadata)


def failed_item(error: Exception, metadata: Metadata) -> ItemReturn:
    """Return the outcome of an item that could not be judged: reward 0, ended, with the reason and the old state."""
    return ItemReturn(
        observation="The environment could not judge this reply.",
        reward=0.0,
        terminated=True,
        metadata=metadata,
        failure=f"{type(error).__name__}: {error}",
    )
