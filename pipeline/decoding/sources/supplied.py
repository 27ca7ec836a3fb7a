"""Drafts that come with the request: the client's prediction of the output, or the tree that a BLS step sends along.

A tree is offered once, at the next step. A prediction is a guess at the whole output; it is offered from the place
where the output so far left off, found again after a deviation by its longest match with the last tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pipeline.config.schema import LookaheadConfig, SuppliedDraftConfig
from pipeline.decoding.request import StepResult
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import EMPTY_TREE, DraftTree, IntArray, chain, limit_tree

# Number of last output tokens that are compared to find the position in a prediction again after a deviation.
MATCH_LEN = 8


@dataclass(slots=True)
class Supplied:
    """Drafts of one request. prediction: [len] guess at the output. position: where in it the output so far ends.
    offered: of the prediction in the current step. num_accepted: prediction tokens that were verified and right."""

    prompt_len: int
    prediction: IntArray
    position: int = 0
    tree: DraftTree = EMPTY_TREE
    offered: IntArray = field(default_factory=lambda: np.empty(0, np.int32))
    num_accepted: int = 0


class SuppliedSource:
    """Passes on what it is given with `supply` and `predict`."""

    name = "supplied"
    needs_top_k = 0

    def __init__(self, config: SuppliedDraftConfig, lookahead: LookaheadConfig | None = None) -> None:
        self._requests: dict[str, Supplied] = {}

    def start(self, request_id: str, prompt_ids: IntArray, namespace: str) -> None:
        self._requests[request_id] = Supplied(len(prompt_ids), np.empty(0, np.int32))

    def supply(self, request_id: str, tree: DraftTree) -> None:
        """Offer `tree` at the next step of a started request."""
        self._requests[request_id].tree = tree

    def predict(self, request_id: str, token_ids: IntArray) -> Supplied:
        """Take token_ids [len] as the likely output of a started request. Returns its state, which counts what is
        accepted and outlives the request."""
        state = self._requests[request_id]
        state.prediction = np.asarray(token_ids, np.int32)
        return state

    def propose(self, request_id: str, context: IntArray, budget: DraftBudget) -> DraftTree:
        state = self._requests[request_id]
        if len(state.tree):
            tree, state.tree = state.tree, EMPTY_TREE
            return limit_tree(tree, budget.max_nodes, budget.max_depth)
        if not len(state.prediction):
            return EMPTY_TREE
        state.position = _place_in(state.prediction, state.position, context[state.prompt_len :])
        end = state.position + min(budget.max_nodes, budget.max_depth)
        state.offered = state.prediction[state.position : end]
        return chain(state.offered.tolist())

    def update(self, request_id: str, step: StepResult, nodes: IntArray) -> None:
        """Count what was accepted of the prediction; its place in the output follows from the context."""
        state = self._requests[request_id]
        if not len(state.offered):
            return
        accepted = np.asarray(step.token_ids[: len(step.nodes)], np.int32)
        length = min(len(accepted), len(state.offered))
        differing = np.flatnonzero(accepted[:length] != state.offered[:length])
        state.num_accepted += int(differing[0]) if len(differing) else length
        state.offered = state.offered[:0]

    def stop(self, request_id: str) -> None:
        self._requests.pop(request_id, None)


def _place_in(prediction: IntArray, position: int, output: IntArray) -> int:
    """Position in `prediction` of the text after `output`: after the longest match (up to `MATCH_LEN` tokens) with the
    output's end. Of equal matches the nearest at or after `position`, the last known one, then the nearest before."""
    if not len(output):
        return 0
    ends = np.flatnonzero(prediction == output[-1]) + 1
    if not len(ends):
        return len(prediction)
    lengths = np.ones(len(ends), np.int32)
    matching = np.ones(len(ends), np.bool_)
    for back in range(2, min(MATCH_LEN, len(output)) + 1):
        matching &= (ends >= back) & (prediction[np.maximum(ends - back, 0)] == output[-back])
        lengths += matching
    distance = np.where(ends >= position, ends - position, len(prediction) + position - ends)
    return int(ends[np.lexsort((distance, -lengths))[0]])
