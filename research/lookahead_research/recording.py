"""Computes the rows of a target after texts, and records them, so that later replays need no model: see
`recorded_rows`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lookahead_research.recorded_rows import UNKNOWN, RecordedRows
from pipeline.decoding.tree import DraftTree, FloatArray, IntArray, select_nodes
from pipeline.engine.contract import Engine, VerifyItem

# Maximum number of prompt tokens in a pass, whose logits are all in memory at once.
_CHUNK = 128


class LiveRows:
    """Recorded rows of one text. An engine computes the missing ones."""

    def __init__(self, recorded: RecordedRows, engine: Engine) -> None:
        self.recorded = recorded
        self._engine = engine

    def candidates(self, position: int, tree: DraftTree, k: int) -> tuple[IntArray, FloatArray]:
        missing = self.recorded.find(position, tree) == UNKNOWN
        if missing.any():
            # A node can only be verified with its ancestors.
            wanted = missing[1:].copy()
            for node in range(len(tree) - 1, -1, -1):
                if wanted[node] and tree.parents[node] >= 0:
                    wanted[tree.parents[node]] = True
            self._verify(position, select_nodes(tree, wanted))
        return self.recorded.candidates(position, tree, k)

    def _verify(self, position: int, tree: DraftTree) -> None:
        sequence = self._engine.open(self.recorded.text[:position])
        try:
            (logits,) = self._engine.verify([VerifyItem(sequence, tree)])
        finally:
            self._engine.release(sequence)
        assert logits is not None, "no token of the text is left pending"
        self.recorded.add(position, tree, *logits.top_k(self.recorded.k))


def text_logits(engine: Engine, text: IntArray) -> Iterator[FloatArray]:
    """Yield the logits [vocab_size] after every prefix of a text, the whole text included."""
    sequence = engine.open(text, reuse=False)
    try:
        while sequence.num_pending:
            count = min(sequence.num_pending, _CHUNK, engine.limits.max_num_tokens)
            (logits,) = engine.verify([VerifyItem(sequence, num_pending=count, pending_rows=True)])
            assert logits is not None, "rows of pending tokens were requested"
            yield from logits.pending()
    finally:
        engine.release(sequence)


def text_rows(engine: Engine, text: IntArray, k: int) -> tuple[IntArray, FloatArray]:
    """[len, k] ids and probabilities of the most probable tokens after every prefix of a text."""
    ids: list[IntArray] = []
    probs: list[FloatArray] = []
    for row in text_logits(engine, text):
        best = np.argpartition(row, -k)[-k:]
        best = best[np.argsort(-row[best], kind="stable")]
        shares = np.exp(row - row[best[0]])
        ids.append(best.astype(np.int32))
        probs.append((shares[best] / shares.sum()).astype(np.float32))
    return np.stack(ids), np.stack(probs)
