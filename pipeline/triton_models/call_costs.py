"""Costs of calls to a served engine, learned from the calls.

A call takes a fixed time (communication with the engine, lookup of the prefix), a time per pass and a time per draft
token. The three are fitted by least squares over past calls, with older calls weighted less, so that they follow the
load.
"""

from __future__ import annotations

import numpy as np

from pipeline.decoding.tree import DraftTree

# Weight that a call keeps with each later one: about forty calls are remembered.
_KEEP = 0.975
# Calls before which there is nothing to go by.
_MIN_CALLS = 8
# Ridge term: pulls values that the calls cannot separate yet towards zero.
_RIDGE = 1e-3
_LEAST_SECONDS = 1e-6


class CallCosts:
    """Costs of one engine's calls. Lives in one event loop."""

    def __init__(self) -> None:
        self._squares = np.eye(3) * _RIDGE
        self._products = np.zeros(3)
        self._num_calls = 0

    def record(self, num_passes: int, num_drafts: int, seconds: float) -> None:
        """Learn from a call that took `seconds`: with drafts one pass, else one per token."""
        row = np.asarray([1.0, num_passes, num_drafts])
        self._squares = _KEEP * self._squares + np.outer(row, row)
        self._products = _KEEP * self._products + row * seconds
        self._num_calls += 1

    def num_paying(self, tree: DraftTree, chunk: int) -> int:
        """How many of a tree's most probable nodes, sent with one call, give the most tokens per second; 0 if that is
        decoding `chunk` tokens in one call without drafts."""
        if self._num_calls < _MIN_CALLS or not len(tree) or tree.probabilities is None:
            return len(tree)
        fixed, per_pass, per_draft = self._fitted()
        seconds = fixed + per_pass + per_draft * np.arange(len(tree) + 1)
        seconds[0] = fixed / chunk + per_pass
        tokens = np.ones(len(tree) + 1)
        tokens[1:] += np.cumsum(-np.sort(-tree.probabilities))
        return int((tokens / seconds).argmax())

    def _fitted(self) -> tuple[float, float, float]:
        found = np.linalg.solve(self._squares + np.eye(3) * _RIDGE, self._products)
        fixed, per_pass, per_draft = np.maximum(found, [0.0, _LEAST_SECONDS, 0.0]).tolist()
        return fixed, per_pass, per_draft
