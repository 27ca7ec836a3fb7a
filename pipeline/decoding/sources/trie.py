"""Drafts from the shared trie of past outputs and the request's own text, in one estimate (arXiv 2312.12728)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.config.schema import LookaheadConfig, TrieDraftConfig
from pipeline.decoding.request import StepResult
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import EMPTY_TREE, DraftTree, IntArray
from pipeline.decoding.trie import Trie, TrieStream
from pipeline.decoding.trie.estimator import Estimator
from pipeline.decoding.trie.merging import merge_tries
from pipeline.decoding.trie.snapshot import load_trie, save_trie
from pipeline.errors import ConfigError

STATE = "trie.snapshot"


@dataclass(slots=True)
class _Request:
    """own: private trie of prompt and output. own_text: stream into it. output: stream of the output into the shared
    trie."""

    namespace: str
    own: Trie
    own_text: TrieStream
    output: TrieStream


class TrieSource:
    """Shares emitted tokens at once between the requests of a namespace; a prompt stays private to its request."""

    name = "trie"
    needs_top_k = 0

    def __init__(self, config: TrieDraftConfig, lookahead: LookaheadConfig | None = None) -> None:
        """Raises ConfigError if max_bytes is too small or the snapshot's branch_length differs, UserError if the
        snapshot cannot be read."""
        try:
            self.trie = Trie(config.branch_length, config.max_bytes)
        except ValueError as error:
            raise ConfigError(f"draft source 'trie': {error}") from error
        if config.snapshot is not None:
            self.trie.merge(_snapshot(config.snapshot, config.branch_length))
        self._branch_length = config.branch_length
        self._estimator = Estimator(config.branch_length, config.retrieval)
        self._requests: dict[str, _Request] = {}

    def start(self, request_id: str, prompt_ids: IntArray, namespace: str) -> None:
        own = Trie(self._branch_length, expected_tokens=len(prompt_ids))
        text = own.open()
        text.append(prompt_ids)
        self._requests[request_id] = _Request(namespace, own, text, self.trie.open(namespace))

    def propose(self, request_id: str, context: IntArray, budget: DraftBudget) -> DraftTree:
        if budget.max_nodes <= 0 or budget.max_depth <= 0:
            return EMPTY_TREE
        request = self._requests[request_id]
        return self._estimator.grow(
            request.own, self.trie, request.namespace, context, budget.max_nodes, budget.max_depth
        )

    def update(self, request_id: str, step: StepResult, nodes: IntArray) -> None:
        request = self._requests[request_id]
        tokens = np.asarray(step.token_ids, np.int32)
        try:
            self._estimator.learn(request.own, self.trie, request.namespace, step.context, tokens)
        finally:  # missing tokens would corrupt all later text
            request.own_text.append(tokens)
            request.output.append(tokens)

    def save_learned(self, folder: Path, fingerprint: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        save_trie(self.trie, folder / STATE)

    def load_learned(self, folder: Path, fingerprint: str) -> None:
        path = folder / STATE
        if path.exists():
            merge_tries(self.trie, [load_trie(path)])  # the file repeats the texts of the configured snapshot

    def stop(self, request_id: str) -> None:
        request = self._requests.pop(request_id, None)
        if request is not None:
            request.output.close()


def _snapshot(path: str, branch_length: int) -> Trie:
    trie = load_trie(path)
    if trie.branch_length != branch_length:
        raise ConfigError(
            f"draft source 'trie': branch_length is {branch_length}, but {trie.branch_length} in the snapshot {path}. "
            f"Set branch_length: {trie.branch_length}, or build it again with --branch-length {branch_length}."
        )
    return trie
