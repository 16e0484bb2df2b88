r"""Mathematical answers: the last `\boxed{…}` of a reply, compared with the expected one as mathematics."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from greenroom.environments.interfaces import ItemReturn, ItemwiseEnvironment, MessageLog, Metadata
from greenroom.environments.replies import boxed_answers, last_reply

JUDGE = "greenroom.environments.math_judge"
START_SECONDS = 120.0
"""How long the judge's process may take to import what it needs."""


_STARTER = ThreadPoolExecutor(1, thread_name_prefix="judge")
"""One thread that lasts as long as this process."""


class Judge:
    """A process that compares answers. One that takes too long is killed, whatever it is doing; the next starts anew."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def agree(self, expected: str, answer: str, seconds: float) -> bool:
        """Return whether two answers are the same mathematics (see `math_judge.answers_agree`).

        Args:
            expected: the right answer.
            answer: the answer to judge.
            seconds: how long that may take.

        Raises:
            ValueError: they cannot be compared; the message says why.
            TimeoutError: there is no verdict in time.
        """
        with self._lock:
            child = self._started()
            assert child.stdin
            try:
                child.stdin.write(json.dumps([expected, answer]).encode() + b"\n")
                child.stdin.flush()
                said = _line(child, seconds)
            except TimeoutError:
                self._end()
                raise TimeoutError(f"no verdict within {seconds:g} s") from None
            except OSError as error:
                self._end()
                raise ValueError(f"the judge ended over it: {error}") from error
        if "error" in said:
            raise ValueError(said["error"])
        return bool(said["agree"])

    def close(self) -> None:
        """End the process. May be called twice."""
        with self._lock:
            self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self._end()
            # The process dies with the thread that starts it (prctl(2), PR_SET_PDEATHSIG): with one that lasts.
            self._child = _STARTER.submit(_start).result()
            try:
                _line(self._child, START_SECONDS)
            except (TimeoutError, OSError):
                self._end()
                raise
        return self._child

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            for pipe in (self._child.stdin, self._child.stdout):
                if pipe:
                    pipe.close()
            self._child = None


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", JUDGE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)


def _line(child: subprocess.Popen[bytes], seconds: float) -> Any:
    """Return the next line that a process writes, as JSON.

    Raises:
        TimeoutError: there is none in time.
        OSError: the process has ended.
    """
    assert child.stdout
    deadline = time.monotonic() + seconds
    text = b""
    while not text.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([child.stdout], [], [], left)[0]:
            raise TimeoutError
        chunk = os.read(child.stdout.fileno(), 65536)
        if not chunk:
            raise OSError(f"exit code {child.wait()}")
        text += chunk
    return json.loads(text)


class MathEnvironment(ItemwiseEnvironment):
    r"""Rewards a reply with 1 when its last `\boxed{…}` agrees with the metadata's `expected_answer`, else 0.

    One step is an episode.

    Args:
        seconds: how long parsing and comparing one item's answers may take, together.
    """

    def __init__(self, *, seconds: float = 5) -> None:
        self.seconds = seconds
        self.judge = Judge()

    def step_item(self, message_log: MessageLog, metadata: Metadata) -> ItemReturn:
        """Judge one reply (see `ItemwiseEnvironment.step_item`).

        Raises:
            KeyError: the metadata has no `expected_answer`.
            ValueError: there is no reply, or `expected_answer` is not mathematics.
            TimeoutError: there was no verdict in time.
        """
        expected = str(metadata["expected_answer"])
        answers = boxed_answers(last_reply(message_log))
        correct = bool(answers) and self.judge.agree(expected, answers[-1], self.seconds)
        return ItemReturn(
            observation="Correct." if correct else "Incorrect." if answers else r"No \boxed{} answer.",
            reward=1.0 if correct else 0.0,
            terminated=True,
            metadata=metadata,
            answer=answers[-1] if answers else None,
        )

    def shutdown(self) -> None:
        """End the judge's process."""
        self.judge.close()


class MathMultiRewardEnvironment(MathEnvironment):
    r"""Rewards a reply with a weighted sum: correctness, format, and a reward model's score when one is configured.

    `reward_parts` holds the unweighted parts: `correct` (0 or 1), `format` (1 when there is exactly one `\boxed{…}`)
    and `reward_model` (whatever the model returns).

    Args:
        weights: the weight of each part by name; a part without one does not count.
        reward_model: an ONNX file (see `reward_model_environment`); None for none.
        seconds: how long parsing and comparing one item's answers may take, together.

    Raises:
        ValueError: `weights` names an unknown part.
    """

    PARTS = ("correct", "format", "reward_model")

    def __init__(
        self, *, weights: dict[str, float] | None = None, reward_model: str | None = None, seconds: float = 5
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
