"""Queries tries for draft trees, and learns how much weight each suffix of the context gets."""

from __future__ import annotations

import numpy as np

from pipeline.config.schema import Retrieval
from pipeline.decoding.compiled import Plain
from pipeline.decoding.tree import DraftTree, FloatArray, IntArray, read_only
from pipeline.decoding.trie.draft_tree import grow_draft_tree, new_buffers
from pipeline.decoding.trie.learning import learn_tokens
from pipeline.decoding.trie.next_tokens import NUM_CLASSES
from pipeline.decoding.trie.suffixes import NUM_TRIES, Workspace, new_workspace
from pipeline.decoding.trie.text_trie import Trie

# Depth from which nodes of a draft tree have one child; the root has depth 0.
SINGLE_FROM: dict[Retrieval, int] = {"hierarchical": 1 << 30, "parallel": 1, "single": 0}
LEARNING_RATE = 0.3
# Logarithms of the first escape counts: the base, for a suffix of one token; then what is added per further token, for
# the shared trie, and for suffixes with several next tokens.
FIRST_ESCAPE, ESCAPE_PER_TOKEN, SHARED_ESCAPE, AMBIGUOUS_ESCAPE = 0.2, -0.2, 1.2, 2.0


class Estimator:
    """The escape counts of suffixes, learned from all requests of a source.

    escape_counts: [tries * orders * NUM_CLASSES] see `next_tokens`; `learn` changes them in place.
    """

    def __init__(self, branch_length: int, retrieval: Retrieval = "hierarchical") -> None:
        self._single_from = SINGLE_FROM[retrieval]
        self._nothing = Trie(branch_length)
        orders = np.arange(branch_length, dtype=np.float32)
        logs = np.zeros((NUM_TRIES, len(orders), NUM_CLASSES), np.float32)
        logs += (FIRST_ESCAPE + ESCAPE_PER_TOKEN * (orders - 1))[:, None]
        logs[1] += SHARED_ESCAPE
        logs[:, :, 1] += AMBIGUOUS_ESCAPE
        self.escape_counts: FloatArray = np.exp(logs).reshape(-1)
        self._work = new_workspace(1, branch_length)

    def grow(
        self, own: Trie, shared: Trie | None, namespace: str, context: IntArray, max_nodes: int, max_depth: int
    ) -> DraftTree:
        """Return the tree of the most likely continuations of context [len], with estimated path probabilities."""
        pair, work = self._pair(own, shared, namespace), self._workspace(max_nodes + 1)
        buffers = new_buffers(max_nodes)
        num = grow_draft_tree(
            pair,
            tuple(work),
            tuple(buffers),
            read_only(context),
            self.escape_counts,
            max_nodes,
            max_depth,
            self._single_from,
        )
        return DraftTree(buffers.token_ids[:num], buffers.parents[:num], buffers.path_probabilities[:num])

    def learn(self, own: Trie, shared: Trie | None, namespace: str, context: IntArray, tokens: IntArray) -> None:
        """Learn from the tokens [n] that followed context [len]. Call it before they are inserted into the tries."""
        pair, work = self._pair(own, shared, namespace), self._workspace(len(tokens))
        learn_tokens(pair, tuple(work), read_only(context), tokens, self.escape_counts, LEARNING_RATE)

    def _pair(self, own: Trie, shared: Trie | None, namespace: str) -> Plain:
        """The tries as the kernels take them. Valid until one of them changes."""
        shared = self._nothing if shared is None else shared
        return tuple(own.arrays), tuple(shared.arrays), own.root(), shared.root(namespace)

    def _workspace(self, num_rows: int) -> Workspace:
        """A workspace of at least num_rows rows, reused between calls."""
        if num_rows > len(self._work.ends):
            self._work = new_workspace(num_rows, self._work.ends.shape[2])
        return self._work
