"""Asking tries for draft trees, and learning how far to trust what they say."""

from __future__ import annotations

import numpy as np

from pipeline.config.schema import Retrieval
from pipeline.decoding.tree import DraftTree, FloatArray, IntArray
from pipeline.decoding.trie.estimate import MATCH_CLASSES, NUM_CLASSES
from pipeline.decoding.trie.growth import grow_tree
from pipeline.decoding.trie.layout import LongArray
from pipeline.decoding.trie.learning import learn_tokens
from pipeline.decoding.trie.structure import Trie
from pipeline.decoding.trie.workspace import NUM_TRIES, new_workspace

UNLIMITED = 1 << 30
# How many children the root and the other nodes of a draft tree may have.
FANS: dict[Retrieval, tuple[int, int]] = {
    "hierarchical": (UNLIMITED, UNLIMITED),
    "parallel": (UNLIMITED, 1),
    "single": (1, 1),
}
LEARNING_RATE = 0.3
# What is believed at first (logarithms of doubts): a context seen once, of one token; for each token more; in the
# shared trie; if it went on in several ways; if it goes on beyond a branch.
FIRST_DOUBT, DOUBT_PER_TOKEN, SHARED_DOUBT, AMBIGUOUS_DOUBT, LONG_MATCH_DOUBT = 0.2, -0.3, 1.2, 2.0, -1.0


class Estimator:
    """How far contexts can be trusted, learnt from all requests of a source."""

    def __init__(self, branch_length: int, retrieval: Retrieval = "hierarchical") -> None:
        self._branch_length = branch_length
        self._fans = FANS[retrieval]
        self._nothing = Trie(branch_length)
        orders = np.arange(branch_length + MATCH_CLASSES, dtype=np.float32)
        doubts = np.zeros((NUM_TRIES, len(orders), NUM_CLASSES), np.float32)
        doubts += (FIRST_DOUBT + DOUBT_PER_TOKEN * (orders - 1))[:, None]
        doubts[1] += SHARED_DOUBT
        doubts[:, :, NUM_CLASSES // 2 :] += AMBIGUOUS_DOUBT
        doubts[:, branch_length + 1 :] += LONG_MATCH_DOUBT
        self._doubts: FloatArray = np.exp(doubts).reshape(-1)
        self._num_rows = 0
        self._provide(65)

    def grow(
        self, own: Trie, shared: Trie | None, namespace: str, context: IntArray, max_nodes: int, max_depth: int
    ) -> DraftTree:
        """The most likely continuations of context [len], with the estimated probability of each path."""
        self._provide(max_nodes + 1)
        them, roots = self._shared(own, shared, namespace)
        found = grow_tree(
            own.numbers, them, roots, self._work, context, self._doubts, max_nodes, max_depth, *self._fans
        )
        return DraftTree(*found)

    def learn(self, own: Trie, shared: Trie | None, namespace: str, context: IntArray, tokens: IntArray) -> None:
        """Learn from the tokens that followed context, before they are inserted."""
        self._provide(len(tokens))
        them, roots = self._shared(own, shared, namespace)
        learn_tokens(own.numbers, them, roots, self._work, context, tokens, self._doubts, LEARNING_RATE)

    def _shared(self, own: Trie, shared: Trie | None, namespace: str) -> tuple[LongArray, tuple[int, int]]:
        if shared is None:
            return self._nothing.numbers, (own.root(), 0)
        return shared.numbers, (own.root(), shared.root(namespace))

    def _provide(self, num_rows: int) -> None:
        if num_rows > self._num_rows:
            self._num_rows = num_rows
            self._memory, self._work = new_workspace(num_rows, self._branch_length)
