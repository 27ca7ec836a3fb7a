"""Asking tries for draft trees, and learning how far to trust what they say."""

from __future__ import annotations

from typing import Literal

import numpy as np

from pipeline.decoding.tree import DraftTree, FloatArray, IntArray
from pipeline.decoding.trie.estimate import MATCH_CLASSES, NUM_CLASSES, NUM_TRIES
from pipeline.decoding.trie.growth import grow_tree, learn_tokens
from pipeline.decoding.trie.layout import empty_arrays
from pipeline.decoding.trie.structure import Trie

Retrieval = Literal["hierarchical", "parallel", "single"]
UNLIMITED = 1 << 30
# How many children the root and the other nodes of a draft tree may have.
FANS: dict[Retrieval, tuple[int, int]] = {
    "hierarchical": (UNLIMITED, UNLIMITED),
    "parallel": (UNLIMITED, 1),
    "single": (1, 1),
}
LEARNING_RATE = 0.05


class Estimator:
    """What was learnt about the worth of contexts; shared by all requests of a source."""

    def __init__(self, branch_length: int, retrieval: Retrieval) -> None:
        self._fans = FANS[retrieval]
        self._nothing = empty_arrays(2, branch_length)
        orders = np.arange(branch_length + MATCH_CLASSES, dtype=np.float32)
        self.strengths: FloatArray = np.zeros((NUM_TRIES, len(orders), NUM_CLASSES), np.float32)
        self.strengths += (0.8 - 0.15 * orders)[None, :, None]
        self.strengths[1] += 0.9
        self.strengths[:, :, 4:] += 0.9
        self.strengths[:, -3:] -= 1.0

    def grow(
        self, own: Trie, shared: Trie | None, namespace: str, context: IntArray, max_nodes: int, max_depth: int
    ) -> DraftTree:
        arrays, root = self._shared(shared, namespace)
        return DraftTree(
            *grow_tree(
                own.arrays, arrays, (own.root(), root), context, self.strengths, max_nodes, max_depth, *self._fans
            )
        )

    def learn(self, own: Trie, shared: Trie | None, namespace: str, context: IntArray, tokens: IntArray) -> None:
        """Learn from the tokens that followed context, before they are inserted."""
        arrays, root = self._shared(shared, namespace)
        learn_tokens(own.arrays, arrays, (own.root(), root), context, tokens, self.strengths, LEARNING_RATE)

    def _shared(self, shared, namespace):
        return (self._nothing, 0) if shared is None else (shared.arrays, shared.root(namespace))
