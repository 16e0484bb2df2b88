"""Code similarity: the share of tokens that a reply's code has in common with a reference."""

from __future__ import annotations

import re

from greenroom.environments.interfaces import ItemReturn, ItemwiseEnvironment, MessageLog, Metadata
from greenroom.environments.replies import fenced_code, last_reply

# Words and numbers, or single signs. Not the tokeniser of a language: replies need not parse.
_TOKEN = re.compile(r"\w+|[^\w\s]")


def jaccard_similarity(first: str, second: str) -> float:
    """Return the Jaccard similarity of two texts' token sets, 0 to 1; two texts without tokens are equal (1)."""
    tokens, others = set(_TOKEN.findall(first)), set(_TOKEN.findall(second))
    if not tokens and not others:
        return 1.0
    return len(tokens & others) / len(tokens | others)


class CodeJaccardEnvironment(ItemwiseEnvironment):
    """Rewards a reply with the similarity (0 to 1) of its code to the metadata's `reference`; one step an episode."""

    def step_item(self, message_log: MessageLog, metadata: Metadata) -> ItemReturn:
        """Judge one reply (see `ItemwiseEnvironment.step_item`).

        Raises:
            KeyError: the metadata has no `reference`.
            ValueError: there is no reply.
        """
        reference = str(metadata["reference"])
        code = fenced_code(last_reply(message_log))
        similarity = jaccard_similarity(code, reference)
        return ItemReturn(
            observation=f"Similarity to the reference: {similarity:.3f}",
            reward=similarity,
            terminated=True,
            metadata=metadata,
            answer=code,
        )
