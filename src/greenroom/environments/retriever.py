"""A search tool: answers a reply's query with the best documents, ranked by BM25."""

from __future__ import annotations

import re
from collections.abc import Sequence

import bm25s

from greenroom.environments.interfaces import ItemReturn, ItemwiseEnvironment, MessageLog, Metadata
from greenroom.environments.replies import last_reply, tagged


def words(text: str) -> list[str]:
    """Return a text's words in lower case. Stop words stay: BM25 weighs what is everywhere close to nothing."""
    return re.findall(r"\w+", text.lower())


class Retriever:
    """An index over documents.

    Args:
        documents: the documents; at least one, and at least one word among them.

    Raises:
        ValueError: there is nothing to index.
    """

    def __init__(self, documents: Sequence[str]) -> None:
        self.documents = tuple(documents)
        corpus = [words(document) for document in self.documents]
        if not any(corpus):
            raise ValueError("no documents to index")
        self._index = bm25s.BM25()
        self._index.index(corpus, show_progress=False)

    def best(self, query: str, count: int) -> list[tuple[int, float]]:
        """Return up to `count` documents that share a word with the query, as (position, score), best first."""
        found, scores = self._index.retrieve(
            [words(query)], k=min(count, len(self.documents)), show_progress=False, n_threads=0
        )
        return [(int(at), float(score)) for at, score in zip(found[0], scores[0], strict=True) if score > 0]


class RetrieverEnvironment(ItemwiseEnvironment):
    """Answers `<search>…</search>` with documents; a reply without a search ends the episode with its `<answer>`.

    The reward is always 0: to judge the answer is another environment's work.

    Args:
        documents: the documents to search.
        top_k: how many documents a search returns at most.

    Raises:
        ValueError: there is nothing to index, or `top_k` is less than 1.
    """

    STOP_STRINGS = ("</search>", "</answer>")

    def __init__(self, *, documents: Sequence[str], top_k: int = 3) -> None:
        if top_k < 1:
            raise ValueError("top_k must be at least 1")
        self.retriever = Retriever(documents)
        self.top_k = top_k

    def step_item(self, message_log: MessageLog, metadata: Metadata) -> ItemReturn:
        """Answer one reply (see `ItemwiseEnvironment.step_item`).

        Raises:
            ValueError: there is no reply.
        """
        reply = last_reply(message_log)
        query = tagged(reply, "search")
        if query is None:
            return ItemReturn(
                observation="", reward=0.0, terminated=True, metadata=metadata, answer=tagged(reply, "answer")
            )
        found = [self.retriever.documents[position] for position, _ in self.retriever.best(query, self.top_k)]
        lines = [f"[{number}] {document}" for number, document in enumerate(found, 1)]
        return ItemReturn(
            observation="\n".join(lines) or "No document matches.",
            reward=0.0,
            terminated=False,
            metadata=metadata,
            next_stop_strings=self.STOP_STRINGS,
        )
