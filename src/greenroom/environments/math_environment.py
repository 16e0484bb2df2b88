r"""Mathematical answers: the last `\boxed{…}` of a reply, compared with the expected one as mathematics."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from math_verify import parse, verify
from math_verify.errors import TimeoutException

from greenroom.environments.interfaces import EnvironmentReturn, ItemReturn, ItemwiseEnvironment, MessageLog, Metadata
from greenroom.environments.replies import boxed_answers, last_reply


def answers_agree(expected: str, answer: str, seconds: int = 5) -> bool:
    r"""Return whether two answers are the same mathematics, as `1/2`, `0.5` and `\frac{2}{4}` are.

    Args:
        expected: the right answer, plain or LaTeX, with or without `\boxed{}` or dollar signs.
        answer: the answer to judge, without `\boxed{}`.
        seconds: how long each of parsing and comparing may take.

    Raises:
        ValueError: the expected answer is not mathematics.
        TimeoutError: parsing or comparing took too long.
    """
    bare = (boxed_answers(expected) or [expected.strip().strip("$")])[-1]
    try:
        gold, target = (
            parse(rf"\boxed{{{text}}}", parsing_timeout=seconds, raise_on_error=True) for text in (bare, answer)
        )
        if not gold:
            raise ValueError(f"the expected answer {expected!r} is not mathematics")
        return bool(verify(gold, target, timeout_seconds=seconds, raise_on_error=True))
    except TimeoutException as error:
        # Not an Exception: it would end the whole batch.
        raise TimeoutError(f"no verdict within {seconds} s") from error


class MathEnvironment(ItemwiseEnvironment):
    r"""Rewards a reply with 1 when its last `\boxed{…}` agrees with the metadata's `expected_answer`, else 0.

    One step is an episode.

    Args:
        seconds: how long each of parsing and comparing an answer may take.
    """

    def __init__(self, *, seconds: int = 5) -> None:
        self.seconds = seconds

    def step(self, message_logs: Sequence[MessageLog], metadata: Sequence[Metadata]) -> EnvironmentReturn:
        """Judge a batch (see `EnvironmentInterface.step`).

        Raises:
            ValueError: the two arguments differ in length.
            RuntimeError: called outside the main thread, where the verifier's time limit (an alarm signal) cannot work.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("math answers are verified in the main thread only: use an actor without concurrency")
        return super().step(message_logs, metadata)

    def step_item(self, message_log: MessageLog, metadata: Metadata) -> ItemReturn:
        """Judge one reply (see `ItemwiseEnvironment.step_item`).

        Raises:
            KeyError: the metadata has no `expected_answer`.
            ValueError: there is no reply, or `expected_answer` is not mathematics.
            TimeoutError: there was no verdict in time.
        """
        expected = str(metadata["expected_answer"])
        answers = boxed_answers(last_reply(message_log))
        correct = bool(answers) and answers_agree(expected, answers[-1], self.seconds)
        return ItemReturn(
            observation="Correct." if correct else "Incorrect." if answers else r"No \boxed{} answer.",
            reward=1.0 if correct else 0.0,
            terminated=True,
            metadata=metadata,
            answer=answers[-1] if answers else None,
        )


class MathMultiRewardEnvironment(MathEnvironment):
    r"""Rewards a reply with a weighted sum: correctness, format, and a reward model's score when one is configured.

    `reward_parts` holds the unweighted parts: `correct` (0 or 1), `format` (1 when there is exactly one `\boxed{…}`)
    and `reward_model` (whatever the model returns).

    Args:
        weights: the weight of each part by name; a part without one does not count.
        reward_model: an ONNX file (see `reward_model_environment`); None for none.
        seconds: how long each of parsing and comparing an answer may take.

    Raises:
        ValueError: `weights` names an unknown part.
    """

    PARTS = ("correct", "format", "reward_model")

    def __init__(
        self, *, weights: dict[str, float] | None = None, reward_model: str | None = None, seconds: int = 5
    ) -> None:
        super().__init__(seconds=seconds)
        self.weights = weights or {"correct": 1.0, "format": 0.1, "reward_model": 0.1}
        if unknown := sorted(set(self.weights) - set(self.PARTS)):
            raise ValueError(f"unknown parts {', '.join(unknown)}; known: {', '.join(self.PARTS)}")
        self.reward_model = None
        if reward_model is not None:
            # Here and not above: MathEnvironment's virtual environment has no onnxruntime.
            from greenroom.environments.reward_model_environment import OnnxRewardModel

            self.reward_model = OnnxRewardModel(reward_model)

    def step_item(self, message_log: MessageLog, metadata: Metadata) -> ItemReturn:
        """Judge one reply (see `MathEnvironment.step_item`).

        Raises:
            ValueError: also when the reward model returns no number.
        """
        verdict = super().step_item(message_log, metadata)
        one_box = len(boxed_answers(last_reply(message_log))) == 1
        parts = {"correct": verdict.reward, "format": 1.0 if one_box else 0.0}
        if self.reward_model is not None:
            parts["reward_model"] = self.reward_model.score(message_log)
        return ItemReturn(
            observation=verdict.observation,
            reward=sum(self.weights.get(name, 0.0) * part for name, part in parts.items()),
            terminated=True,
            metadata=metadata,
            answer=verdict.answer,
            reward_parts=parts,
        )
