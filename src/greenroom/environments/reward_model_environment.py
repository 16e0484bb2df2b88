"""A reward model: scores conversations with an ONNX file.

The file's only input is a float32 matrix [batch, width] of token counts: each lower-case word or sign of the
conversation counts in column `crc32(token) % width`. Its first output holds one score for each row. Width is fixed in
the file; tokens that share a column are the model's to live with, it was trained on the same columns.
"""

from __future__ import annotations

import math
import re
import zlib
from pathlib import Path

import numpy as np
import onnxruntime

from greenroom.environments.interfaces import ItemReturn, ItemwiseEnvironment, MessageLog, Metadata
from greenroom.environments.replies import last_reply

_TOKEN = re.compile(r"\w+|[^\w\s]")


class OnnxRewardModel:
    """A reward model in memory.

    Args:
        path: the ONNX file.
        threads: how many threads a score may use.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: its input is not one float32 matrix of fixed width.
    """

    def __init__(self, path: str, *, threads: int = 1) -> None:
        if not Path(path).is_file():
            raise FileNotFoundError(f"no reward model at {path}")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        inputs = self._session.get_inputs()
        shape = inputs[0].shape if len(inputs) == 1 else []
        if len(shape) != 2 or not isinstance(shape[1], int) or inputs[0].type != "tensor(float)":
            raise ValueError(f"{path} does not take one float32 matrix of fixed width")
        self._input_name = inputs[0].name
        self._output_name = self._session.get_outputs()[0].name
        self.width = shape[1]

    def score(self, message_log: MessageLog) -> float:
        """Return the score of a conversation.

        Raises:
            ValueError: the model returned something else than one finite number.
        """
        counts = np.zeros((1, self.width), dtype=np.float32)
        for message in message_log:
            for token in _TOKEN.findall(message["content"].lower()):
                counts[0, zlib.crc32(token.encode()) % self.width] += 1
        (scores,) = self._session.run([self._output_name], {self._input_name: counts})
        if np.size(scores) != 1 or not math.isfinite(score := float(np.ravel(scores)[0])):
            raise ValueError("the reward model did not return one finite number")
        return score


class RewardModelEnvironment(ItemwiseEnvironment):
    """Rewards a conversation with a reward model's score; one step an episode.

    Args:
        model_path: the ONNX file (see the module).
        threads: how many threads a score may use.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the model has another shape.
    """

    def __init__(self, *, model_path: str, threads: int = 1) -> None:
        self.model = OnnxRewardModel(model_path, threads=threads)

    def step_item(self, message_log: MessageLog, metadata: Metadata) -> ItemReturn:
        """Score one conversation (see `ItemwiseEnvironment.step_item`).

        Raises:
            ValueError: there is no reply, or the model returned no number.
        """
        reply = last_reply(message_log)
        score = self.model.score(message_log)
        return ItemReturn(
            observation=f"Score: {score:.3f}", reward=score, terminated=True, metadata=metadata, answer=reply
        )
