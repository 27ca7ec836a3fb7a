"""Drafts from the request's own prompt and output."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.config.schema import LookaheadConfig, PromptDraftConfig
from pipeline.decoding.request import StepResult
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import EMPTY_TREE, DraftTree, IntArray
from pipeline.decoding.trie import Trie, TrieStream
from pipeline.decoding.trie.estimator import Estimator


@dataclass(slots=True)
class _Request:
    trie: Trie
    text: TrieStream


class PromptSource:
    """Keeps a private trie of prompt and output per request."""

    name = "prompt"
    needs_top_k = 0

    def __init__(self, config: PromptDraftConfig, lookahead: LookaheadConfig | None = None) -> None:
        self._branch_length = config.branch_length
        self._estimator = Estimator(config.branch_length, "hierarchical")
        self._requests: dict[str, _Request] = {}

    def start(self, request_id: str, prompt_ids: IntArray, namespace: str) -> None:
        trie = Trie(self._branch_length, expected_tokens=len(prompt_ids))
        text = trie.open()
        text.append(prompt_ids)
        self._requests[request_id] = _Request(trie, text)

    def propose(self, request_id: str, context: IntArray, budget: DraftBudget) -> DraftTree:
        if budget.max_nodes <= 0 or budget.max_depth <= 0:
            return EMPTY_TREE
        own = self._requests[request_id].trie
        return self._estimator.grow(own, None, "", context, budget.max_nodes, budget.max_depth)

    def update(self, request_id: str, step: StepResult, nodes: IntArray) -> None:
        request = self._requests[request_id]
        tokens = np.asarray(step.token_ids, np.int32)
        try:
            self._estimator.learn(request.trie, None, "", step.context, tokens)
        finally:  # missing tokens would corrupt all later text
            request.text.append(tokens)

    def stop(self, request_id: str) -> None:
        self._requests.pop(request_id, None)
