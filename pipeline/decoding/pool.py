"""The n-gram pool of lookahead decoding (arXiv 2402.02057).

For each first token the pool keeps the last G different continuations of N - 1 tokens. A new one evicts the least
recently seen one.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.decoding.tree import EMPTY_TREE, DraftTree, tree_from_lists

# Weight of a candidate relative to that of the next more recent one.
RECENCY = 0.7
# Weight of all continuations that are not in the pool.
ESCAPE = 3.0


class NgramPool:
    """The pool of one request."""

    def __init__(self, max_ngram_size: int, max_verification_set_size: int) -> None:
        """max_ngram_size: N, length of the n-grams, first token included. max_verification_set_size: G, continuations
        kept per first token."""
        self.max_ngram_size = max_ngram_size
        self._max_per_key = max_verification_set_size
        # A dict keeps its keys in the order of insertion, so the first one is the least recently seen.
        self._continuations: dict[int, dict[tuple[int, ...], None]] = {}

    def add(self, ngram: Sequence[int]) -> None:
        """Insert an n-gram of N tokens as the most recent one of its first token."""
        if not self._max_per_key:
            return
        kept = self._continuations.setdefault(ngram[0], {})
        continuation = tuple(ngram[1:])
        kept.pop(continuation, None)
        if len(kept) >= self._max_per_key:
            del kept[next(iter(kept))]
        kept[continuation] = None

    def add_text(self, token_ids: Sequence[int]) -> None:
        """Insert every n-gram of a text."""
        for start in range(len(token_ids) - self.max_ngram_size + 1):
            self.add(token_ids[start : start + self.max_ngram_size])

    def candidates(self, first: int) -> list[tuple[int, ...]]:
        """Continuations of N - 1 tokens after `first`, the most recent one first."""
        return list(reversed(self._continuations.get(first, {})))

    def tree(self, first: int, max_depth: int) -> DraftTree:
        """The candidates after `first` as a tree. A node's probability is the recency-weighted share of the candidates
        that contain it."""
        index: dict[tuple[int, ...], int] = {}
        parents: list[int] = []
        weights: list[float] = []
        weight = 1.0
        for continuation in self.candidates(first):
            parent = -1
            for depth in range(1, min(len(continuation), max_depth) + 1):
                path = continuation[:depth]
                if path not in index:
                    index[path] = len(parents)
                    parents.append(parent)
                    weights.append(0.0)
                parent = index[path]
                weights[parent] += weight
            weight *= RECENCY
        if not parents:
            return EMPTY_TREE
        total = sum(w for w, parent in zip(weights, parents, strict=True) if parent < 0)
        probabilities: list[float] = []
        for node, parent in enumerate(parents):
            above, mass = (1.0, total) if parent < 0 else (probabilities[parent], weights[parent])
            probabilities.append(above * weights[node] / (mass + ESCAPE))
        return tree_from_lists([path[-1] for path in index], parents, probabilities)
