"""Lookahead decoding as a draft source: the window and, below the same root, candidates from the n-gram pool."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from pipeline.config.schema import LookaheadConfig, WindowDraftConfig
from pipeline.decoding.lookahead import Window, window_size
from pipeline.decoding.pool import NgramPool
from pipeline.decoding.request import StepResult
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import EMPTY_TREE, DraftTree, IntArray, depths, find_nodes, limit_tree
from pipeline.errors import RequestError

# Conditional probability assigned to window nodes. They are verified in any case.
GUESS_PROBABILITY = 0.05


@dataclass(slots=True)
class _Lookahead:
    """State of one request. window: None if it would have no nodes, as for (W, N, G) = (1, 1, 0). proposed: the
    window's tree in the last proposal."""

    prompt_ids: IntArray
    pool: NgramPool
    window: Window | None
    proposed: DraftTree = EMPTY_TREE


class WindowSource:
    """Drafts from the lookahead window and its n-gram pool. limits: the largest W, N and G of a request. A request uses
    them unless `configure` sets others."""

    name = "window"
    needs_top_k = 0

    def __init__(self, config: WindowDraftConfig, limits: LookaheadConfig) -> None:
        self._pool_from_prompt = config.pool_from_prompt
        self.limits = limits
        self._requests: dict[str, _Lookahead] = {}

    def start(self, request_id: str, prompt_ids: IntArray, namespace: str) -> None:
        self._begin(request_id, np.array(prompt_ids, np.int32), self.limits)

    def configure(self, request_id: str, lookahead: LookaheadConfig) -> None:
        """Set W, N and G of a request right after `start`. Raises RequestError if they exceed the limits."""
        if lookahead.exceeds(self.limits):
            raise RequestError(
                f"lookahead (W, N, G) is {lookahead.sizes}; this engine allows at most {self.limits.sizes}"
            )
        self._begin(request_id, self._requests[request_id].prompt_ids, lookahead)

    def propose(self, request_id: str, context: IntArray, budget: DraftBudget) -> DraftTree:
        state = self._requests[request_id]
        window = EMPTY_TREE if state.window is None else state.window.tree()
        if len(window) > budget.max_nodes:
            window = EMPTY_TREE
        state.proposed = window
        pool = state.pool.tree(int(context[-1]), budget.max_depth)
        return _side_by_side(window, limit_tree(pool, budget.max_nodes - len(window), budget.max_depth))

    def update(self, request_id: str, step: StepResult) -> None:
        state = self._requests[request_id]
        window = state.window
        if window is not None:
            choices = _choices_below(window, state.proposed, step)
            if choices is not None and window.is_full:
                for ngram in window.ngrams(int(step.context[-1]), choices):
                    state.pool.add(ngram)
            window.advance(len(step.token_ids), choices)
        state.proposed = EMPTY_TREE
        before = step.context[max(0, len(step.context) - state.pool.max_ngram_size + 1) :]
        state.pool.add_text([*before.tolist(), *step.token_ids])

    def stop(self, request_id: str) -> None:
        self._requests.pop(request_id, None)

    def _begin(self, request_id: str, prompt_ids: IntArray, lookahead: LookaheadConfig) -> None:
        ngram_size = lookahead.max_ngram_size
        pool = NgramPool(ngram_size, lookahead.max_verification_set_size if ngram_size > 1 else 0)
        if self._pool_from_prompt:
            pool.add_text(prompt_ids.tolist())
        window = None
        if window_size(lookahead.max_window_size, ngram_size):
            # The seed depends on the prompt alone, so other requests do not change the window.
            window = Window(lookahead.max_window_size, ngram_size, prompt_ids, zlib.crc32(prompt_ids.tobytes()))
        self._requests[request_id] = _Lookahead(prompt_ids, pool, window)


def _choices_below(window: Window, proposed: DraftTree, step: StepResult) -> IntArray | None:
    """[W] the target's choices below the window's last level. proposed: the window, if it was proposed. None
    if it was not verified, or if the target returns no choices."""
    verified = find_nodes(proposed, step.tree)
    if step.choices is None or not verified or -1 in verified:
        return None
    rows = [0 if node < 0 else verified[node] + 1 for node in window.last_level()]
    choices: IntArray = step.choices[rows].astype(np.int32)
    return choices


def _side_by_side(first: DraftTree, second: DraftTree) -> DraftTree:
    """Join two trees below one root; the nodes of the first tree come first."""
    if not len(first) or not len(second):
        return first if len(first) else second
    assert second.probabilities is not None, "pool candidates carry probabilities"
    below = np.where(second.parents < 0, -1, second.parents + len(first)).astype(np.int32)
    return DraftTree(
        np.concatenate((first.token_ids, second.token_ids)),
        np.concatenate((first.parents, below)),
        np.concatenate((GUESS_PROBABILITY ** depths(first), second.probabilities)).astype(np.float32),
        None,
        first.num_fixed,
    )
