"""Drafts that come with the request: the client's prediction of the output, or the draft tree of a BLS step.

A tree is offered once, at the next step. A prediction covers the whole output. Each step offers its tokens after the
position of the output so far. After a deviation, the longest match with the last output tokens gives that position."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pipeline.config.schema import LookaheadConfig, SuppliedDraftConfig
from pipeline.decoding.request import StepResult
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import EMPTY_TREE, DraftTree, IntArray, chain, limit_tree

# Maximum length of the match between the end of the output and the prediction.
MATCH_LEN = 8


@dataclass(slots=True)
class Supplied:
    """Drafts of one request. prediction: [len] predicted output. position: index in it of the next output token.
    offered: prediction tokens proposed in the current step. num_accepted: prediction tokens accepted so far."""

    prompt_len: int
    prediction: IntArray
    position: int = 0
    tree: DraftTree = EMPTY_TREE
    offered: IntArray = field(default_factory=lambda: np.empty(0, np.int32))
    num_accepted: int = 0


class SuppliedSource:
    """Proposes the trees of `supply` and the predictions of `predict`."""

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
        """Set token_ids [len] as the predicted output of a started request. Returns the state of its drafts, whose
        `num_accepted` stays valid after `stop`."""
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
        state.position = _next_position(state.prediction, state.position, context[state.prompt_len :])
        end = state.position + min(budget.max_nodes, budget.max_depth)
        state.offered = state.prediction[state.position : end]
        return chain(state.offered.tolist())

    def update(self, request_id: str, step: StepResult) -> None:
        """Count the accepted tokens of the prediction. `propose` finds the next position from the context."""
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


def _next_position(prediction: IntArray, position: int, output: IntArray) -> int:
    """Index in `prediction` after the longest match (up to `MATCH_LEN` tokens) with the end of `output`. Of equal
    matches, the nearest at or after the last known `position` wins, then the nearest before it."""
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
