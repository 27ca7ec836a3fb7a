"""Drafts from the request's own prompt and output."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pipeline.config.schema import LookaheadConfig, PromptDraftConfig, TrieDraftConfig
from pipeline.decoding.request import StepResult
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import DraftTree, IntArray
from pipeline.decoding.trie import Trie
from pipeline.decoding.trie.estimator import Estimator

# Texts of ended requests that are kept for requests that continue them, and their tokens in total.
MAX_KEPT, MAX_KEPT_TOKENS = 16, 1 << 15
# Tokens of a running request's output that enter the shared trie at once.
SHARED_TOKENS = 128


class _Text(NamedTuple):
    """Prompt and output of a request, and the private trie that holds them. tokens: arrays to concatenate."""

    namespace: str
    tokens: list[IntArray]
    own: Trie

    def append(self, tokens: IntArray) -> None:
        self.tokens.append(tokens)
        self.own.extend(tokens)


@dataclass(slots=True)
class _PromptState:
    """output: the tokens that the shared trie lacks, behind the last `num_shared` that it has."""

    text: _Text
    output: list[int] = field(default_factory=list)
    num_shared: int = 0


class PromptSource:
    """Keeps a private trie of prompt and output per request.

    A request whose prompt begins with the whole text of an ended one continues the trie of that one. So do the calls
    of one output to an engine, and the turns of a conversation.
    """

    name = "prompt"
    needs_top_k = 0
    # A subclass may add a trie that all requests read, and write their output to.
    _shared: Trie | None = None

    def __init__(self, config: PromptDraftConfig | TrieDraftConfig, lookahead: LookaheadConfig | None = None) -> None:
        retrieval = config.retrieval if isinstance(config, TrieDraftConfig) else "hierarchical"
        self._estimator = Estimator(config.branch_length, retrieval)
        self._branch_length = config.branch_length
        self._requests: dict[str, _PromptState] = {}
        # In the order in which the requests ended, the latest last.
        self._kept: list[tuple[IntArray, _Text]] = []

    def start(self, request_id: str, prompt_ids: IntArray, namespace: str) -> None:
        self._requests[request_id] = _PromptState(self._text_of(prompt_ids, namespace))

    def _text_of(self, prompt_ids: IntArray, namespace: str) -> _Text:
        for index in range(len(self._kept) - 1, -1, -1):
            tokens, text = self._kept[index]
            if text.namespace == namespace and np.array_equal(prompt_ids[: len(tokens)], tokens):
                del self._kept[index]
                text.append(prompt_ids[len(tokens) :])
                return text
        text = _Text(namespace, [], Trie(self._branch_length))
        text.append(prompt_ids)
        return text

    def propose(self, request_id: str, context: IntArray, budget: DraftBudget) -> DraftTree:
        text = self._requests[request_id].text
        return self._estimator.grow(text.own, self._shared, text.namespace, context, budget.max_nodes, budget.max_depth)

    def update(self, request_id: str, step: StepResult) -> None:
        request = self._requests[request_id]
        text, tokens = request.text, np.asarray(step.token_ids, np.int32)
        self._estimator.learn(text.own, self._shared, text.namespace, step.context, tokens)
        text.append(tokens)
        request.output += step.token_ids
        if len(request.output) - request.num_shared >= SHARED_TOKENS:
            self._share(request)

    def stop(self, request_id: str) -> None:
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        self._share(request)
        self._kept.append((np.concatenate(request.text.tokens), request.text))
        while len(self._kept) > MAX_KEPT or sum(len(tokens) for tokens, _ in self._kept) > MAX_KEPT_TOKENS:
            del self._kept[0]

    def _share(self, request: _PromptState) -> None:
        """Insert the output that the shared trie lacks, after the tokens that precede it."""
        if self._shared is not None and len(request.output) > request.num_shared:
            self._shared.insert(np.asarray(request.output, np.int32), request.text.namespace)
        request.num_shared = min(len(request.output), self._branch_length - 1)
        request.output = request.output[len(request.output) - request.num_shared :]
