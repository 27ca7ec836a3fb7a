"""Shared by the tests of the scheduler with grammars: guides, a scheduler with a compiler, and the reference output."""

from __future__ import annotations

import json

import numpy as np

from pipeline.decoding.grammar.guide import Guide
from pipeline.decoding.grammar.translation import grammar_text
from pipeline.decoding.request import GenerationRequest, StepResult
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import DraftTree, IntArray, tree_from_lists
from pipeline.engine.scheduler import Scheduler
from tests import fakes
from tests.fakes import table_logits
from tests.grammars import VOCAB_SIZE, compiler, plain_guided_decode, vocabulary

COMPACT = {"item_separator": ",", "key_separator": ":", "whitespace_flexible": False}


class OracleSource:
    """Proposes the output itself, with wrong tokens in the path and beside it."""

    name = "trie"
    needs_top_k = 0

    def __init__(self, outputs: dict[str, list[int]], seed: int) -> None:
        self._outputs = outputs
        self._random = np.random.default_rng(seed)
        self._prompt_lens: dict[str, int] = {}

    def start(self, request_id: str, prompt_ids: IntArray, namespace: str) -> None:
        self._prompt_lens[request_id] = len(prompt_ids)

    def propose(self, request_id: str, context: IntArray, budget: DraftBudget) -> DraftTree:
        rest = self._outputs[request_id][len(context) - self._prompt_lens[request_id] :]
        tokens, parents, last = [], [], -1
        for token in rest[: budget.max_depth]:
            if len(tokens) + 2 > budget.max_nodes:
                break
            if self._random.random() < 0.5:
                tokens.append(int(self._random.integers(0, VOCAB_SIZE)))
                parents.append(last)
            tokens.append(token if self._random.random() < 0.9 else int(self._random.integers(0, VOCAB_SIZE)))
            parents.append(last)
            last = len(tokens) - 1
        return tree_from_lists(tokens, parents)

    def update(self, request_id: str, step: StepResult) -> None: ...

    def stop(self, request_id: str) -> None: ...


def make_scheduler(source: object | None = None) -> Scheduler:
    return fakes.make_scheduler(source, compiler=compiler())


def grammar_of(guide: Guide) -> str:
    return grammar_text(guide, vocabulary().special_tokens)


def plain(request: GenerationRequest) -> list[int]:
    assert request.guide is not None
    return plain_guided_decode(request, grammar_of(request.guide), table_logits)


def regex(text: str) -> Guide:
    return Guide("regex", text)


def schema(value: object) -> Guide:
    return Guide("json_schema", json.dumps({"x-guidance": COMPACT, **value}))  # type: ignore[dict-item]
