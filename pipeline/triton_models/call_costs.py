"""Model of the time that a call to a served engine takes, fitted to measured calls.

A call takes a fixed time (communication with the engine, lookup of the prefix), a time per pass and a time per draft
token. Least squares over past calls fits the three. Older calls weigh less, so that the fit follows the load.
"""

from __future__ import annotations

import numpy as np

from pipeline.decoding.tree import DraftTree

# Factor by which each call reduces the weight of earlier calls: the fit covers about forty calls.
_KEEP = 0.975
# Calls needed before the fit is used.
_MIN_CALLS = 8
# Ridge term: keeps coefficients near zero until the calls determine them.
_RIDGE = 1e-3
_LEAST_SECONDS = 1e-6


class CallCosts:
    """Fitted call times of one engine. Not thread safe."""

    def __init__(self) -> None:
        self._squares = np.zeros((3, 3))
        self._products = np.zeros(3)
        self._num_calls = 0
        # Tokens per step in which only the engine's own sources draft, and the weight of these steps.
        self._own_tokens, self._own_steps = 1.0, 1.0

    def record(self, num_passes: int, num_drafts: int, seconds: float) -> None:
        """Add a measured call. num_passes: 1 with drafts, else one per token. num_drafts: draft tokens it sent."""
        row = np.asarray([1.0, num_passes, num_drafts])
        self._squares = _KEEP * self._squares + np.outer(row, row)
        self._products = _KEEP * self._products + row * seconds
        self._num_calls += 1

    def best_num_drafts(self, tree: DraftTree, chunk: int) -> int:
        """Return how many of a tree's most probable nodes to send for the most tokens per second. 0: a call without
        drafts that decodes `chunk` tokens is faster."""
        if self._num_calls < _MIN_CALLS or not len(tree) or tree.probabilities is None:
            return len(tree)
        fixed, per_pass, per_draft = self._fitted()
        seconds = fixed + per_pass + per_draft * np.arange(len(tree) + 1)
        seconds[0] = fixed / chunk + per_pass
        tokens = np.ones(len(tree) + 1)
        tokens[1:] += np.cumsum(-np.sort(-tree.probabilities))
        return int((tokens / seconds).argmax())

    def record_own_steps(self, num_steps: int, num_tokens: int) -> None:
        """Add the steps of a call after its first one, for which no drafts were sent."""
        self._own_tokens = _KEEP * self._own_tokens + num_tokens
        self._own_steps = _KEEP * self._own_steps + num_steps

    def num_steps(self, tree: DraftTree, most: int) -> int:
        """Return how many steps a call with a tree should take for the most tokens per second: 1 or `most`. After the
        first step the engine drafts alone, but a new call has a fixed cost."""
        if self._num_calls < _MIN_CALLS:
            return 1
        fixed, per_pass, _ = self._fitted()
        own = self._own_tokens / self._own_steps
        first = own if tree.probabilities is None else max(own, 1 + float(tree.probabilities.sum()))
        return 1 if first * per_pass > own * (fixed + per_pass) else most

    def num_passes(self, seconds: float, most: int) -> int | None:
        """Number of passes that a call can take in a time: at least 1, at most `most`. None while it is unknown."""
        if self._num_calls < _MIN_CALLS:
            return None
        return max(1, min(most, int(seconds / self._fitted()[1])))

    def _fitted(self) -> tuple[float, float, float]:
        found = np.linalg.solve(self._squares + np.eye(3) * _RIDGE, self._products)
        fixed, per_pass, per_draft = np.maximum(found, [0.0, _LEAST_SECONDS, 0.0]).tolist()
        return fixed, per_pass, per_draft
