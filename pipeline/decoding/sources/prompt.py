"""Drafts from the request's own prompt and output."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.config.schema import LookaheadConfig, PromptDraftConfig, TrieDraftConfig
from pipeline.decoding.request import StepResult
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import DraftTree, IntArray
from pipeline.decoding.trie import Trie, TrieStream
from pipeline.decoding.trie.estimator import Estimator


class _Request(NamedTuple):
    """own: private trie of prompt and output. outputs: streams of the output, into `own` and into the shared trie."""

    namespace: str
    own: Trie
    outputs: list[TrieStream]


class PromptSource:
    """Keeps a private trie of prompt and output per request."""

    name = "prompt"
    needs_top_k = 0
    # A subclass may add a trie that all requests read, and write their output to.
    _shared: Trie | None = None

    def __init__(self, config: PromptDraftConfig | TrieDraftConfig, lookahead: LookaheadConfig | None = None) -> None:
        retrieval = config.retrieval if isinstance(config, TrieDraftConfig) else "hierarchical"
        self._estimator = Estimator(config.branch_length, retrieval)
        self._branch_length = config.branch_length
        self._requests: dict[str, _Request] = {}

    def start(self, request_id: str, prompt_ids: IntArray, namespace: str) -> None:
        own = Trie(self._branch_length, expected_tokens=len(prompt_ids))
        outputs = [own.open()]
        outputs[0].append(prompt_ids)
        if self._shared is not None:
            outputs.append(self._shared.open(namespace))
        self._requests[request_id] = _Request(namespace, own, outputs)

    def propose(self, request_id: str, context: IntArray, budget: DraftBudget) -> DraftTree:
        namespace, own, _ = self._requests[request_id]
        return self._estimator.grow(own, self._shared, namespace, context, budget.max_nodes, budget.max_depth)

    def update(self, request_id: str, step: StepResult, nodes: IntArray) -> None:
        namespace, own, outputs = self._requests[request_id]
        tokens = np.asarray(step.token_ids, np.int32)
        try:
            self._estimator.learn(own, self._shared, namespace, step.context, tokens)
        finally:  # missing tokens would corrupt all later text
            for output in outputs:
                output.append(tokens)

    def stop(self, request_id: str) -> None:
        request = self._requests.pop(request_id, None)
        for output in request.outputs if request else []:
            output.close()
