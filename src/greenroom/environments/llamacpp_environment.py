"""A speaker that a language model plays: answers each reply with what a GGUF file generates, on processors alone.

For conversations with a simulated user or a second model. The engine is llama.cpp, compiled for the image in its
stage `llamacpp`.
"""

from __future__ import annotations

import threading
from pathlib import Path

import llama_cpp

from greenroom.environments.interfaces import ItemReturn, ItemwiseEnvironment, MessageLog, Metadata
from greenroom.environments.replies import last_reply


class LlamaCppEnvironment(ItemwiseEnvironment):
    """Answers with a language model, until `max_turns` answers were given. The reward is always 0.

    The model reads the conversation as lines of "role: text", and its own role with nothing after it. It answers
    greedily, so that the same conversation gets the same answer.

    Args:
        model_path: the GGUF file.
        max_tokens: tokens of an answer at most.
        max_turns: answers of an episode at most; how many were given is in the metadata, as `turns`.
        context: tokens that the model reads at most, the answer included.
        threads: threads that it may use.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no model that llama.cpp can load, or a number is not positive.
    """

    ROLE = "user"

    def __init__(
        self, *, model_path: str, max_tokens: int = 64, max_turns: int = 4, context: int = 2048, threads: int = 1
    ) -> None:
        if not Path(model_path).is_file():
            raise FileNotFoundError(f"no language model at {model_path}")
        if min(max_tokens, max_turns, context, threads) < 1:
            raise ValueError("max_tokens, max_turns, context and threads must be at least 1")
        self.max_tokens = max_tokens
        self.max_turns = max_turns
        self._model = llama_cpp.Llama(
            model_path, n_ctx=context, n_threads=threads, n_threads_batch=threads, n_gpu_layers=0, verbose=False
        )
        # One context holds one conversation at a time.
        self._busy = threading.Lock()

    def generate(self, prompt: str, max_tokens: int) -> str:
        """Return what the model generates after a prompt.

        Args:
            prompt: the text to go on from.
            max_tokens: tokens at most.

        Raises:
            ValueError: the prompt is longer than the model reads.
        """
        with self._busy:
            answer = self._model.create_completion(prompt, max_tokens=max_tokens, temperature=0.0)
        return str(answer["choices"][0]["text"])

    def step_item(self, message_log: MessageLog, metadata: Metadata) -> ItemReturn:
        """Answer one reply (see `ItemwiseEnvironment.step_item`).

        Raises:
            ValueError: there is no reply, or the conversation is longer than the model reads.
        """
        reply = last_reply(message_log)
        lines = [f"{message['role']}: {message['content']}" for message in message_log]
        answer = self.generate("\n".join([*lines, f"{self.ROLE}:"]), self.max_tokens)
        turns = int(metadata.get("turns", 0)) + 1
        return ItemReturn(
            observation=answer,
            reward=0.0,
            terminated=turns >= self.max_turns,
            metadata={**metadata, "turns": turns},
            answer=reply,
        )

    def shutdown(self) -> None:
        """Give the model's memory back."""
        with self._busy:
            self._model.close()
