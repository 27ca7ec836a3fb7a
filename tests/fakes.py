"""Fakes that satisfy the product's contracts: an engine over a table, drafters and draft sources."""

from __future__ import annotations

import functools
import itertools
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pipeline.decoding.drafting.drafter import Drafter
from pipeline.decoding.grammar.compiler import Compiler
from pipeline.decoding.planning.cost import CostCurve, CostPoint
from pipeline.decoding.planning.planner import FixedPlanner, Planner
from pipeline.decoding.request import GenerationRequest, SamplingParams, StepResult
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import EMPTY_TREE, DraftTree, IntArray, check_tree, tree_from_lists
from pipeline.engine.contract import Engine, EngineLimits, ReuseCounters, VerifyItem
from pipeline.engine.scheduler import Scheduler

VOCAB_SIZE = 24


def table_logits(context: Sequence[int], vocab_size: int = VOCAB_SIZE) -> np.ndarray:
    """[vocab] logits that depend on the last three tokens only, so that drafts from earlier text are often right."""
    return _table_row(tuple(context[-3:]), vocab_size).copy()


@functools.cache
def _table_row(context: tuple[int, ...], vocab_size: int) -> np.ndarray:
    key = [token + 1 for token in context]
    return np.random.default_rng(key).normal(scale=3.0, size=vocab_size).astype(np.float32)


def cost_curve(rows: Sequence[tuple[int, int, int, float]]) -> CostCurve:
    """A curve of the points (num_tokens, batch_size, context_len, seconds)."""
    return CostCurve(tuple(CostPoint(*row) for row in rows))


@dataclass
class TableSequence:
    tokens: list[int]
    num_cached_tokens: int = 0
    num_reused_tokens: int = 0

    @property
    def num_pending(self) -> int:
        return len(self.tokens) - self.num_cached_tokens


@dataclass
class TableLogits:
    rows: np.ndarray
    prompt_rows: list[np.ndarray] = field(default_factory=list)

    @property
    def choices(self) -> IntArray:
        return self.rows.argmax(axis=1).astype(np.int32)

    def row(self, index: int) -> np.ndarray:
        return self.rows[index]

    def top_k(self, k: int) -> tuple[IntArray, np.ndarray]:
        ids = np.argsort(-self.rows, axis=1, kind="stable")[:, :k]
        weights = np.exp(self.rows - self.rows.max(axis=1, keepdims=True))
        return ids.astype(np.int32), np.take_along_axis(weights / weights.sum(axis=1, keepdims=True), ids, axis=1)

    def pending(self) -> list[np.ndarray]:
        return self.prompt_rows


@dataclass
class TableEngine:
    """The engine contract over `table_logits`; checks that it is used as the contract says."""

    limits: EngineLimits = field(default_factory=lambda: EngineLimits(4, 256, 128, 64, VOCAB_SIZE))
    held: list[TableSequence] = field(default_factory=list)
    num_passes: int = 0
    num_opened: int = 0

    def open(self, token_ids: IntArray, reuse: bool = True) -> TableSequence:
        assert len(self.held) < self.limits.max_batch_size
        sequence = TableSequence(list(map(int, token_ids)))
        self.num_opened += 1
        self.held.append(sequence)
        return sequence

    def verify(self, items: Sequence[VerifyItem]) -> list[TableLogits | None]:
        self.num_passes += 1
        total = 0
        results: list[TableLogits | None] = []
        for item in items:
            sequence = item.sequence
            assert isinstance(sequence, TableSequence)
            assert any(held is sequence for held in self.held)
            num_pending = sequence.num_pending if item.num_pending is None else item.num_pending
            assert 0 < num_pending <= sequence.num_pending
            total += num_pending + len(item.tree)
            start = sequence.num_cached_tokens
            sequence.num_cached_tokens += num_pending
            prompt_rows = [
                table_logits(sequence.tokens[: end + 1])
                for end in range(start, start + num_pending)
                if item.pending_rows
            ]
            if sequence.num_pending:
                assert not len(item.tree)
                results.append(TableLogits(np.empty((0, VOCAB_SIZE), np.float32), prompt_rows) if prompt_rows else None)
                continue
            check_tree(item.tree, self.limits.vocab_size)
            assert len(sequence.tokens) + len(item.tree) <= self.limits.max_seq_len
            assert len(item.tree) <= self.limits.max_draft_tokens
            contexts = [tuple(sequence.tokens[-3:])]
            for token, parent in zip(item.tree.token_ids.tolist(), item.tree.parents.tolist(), strict=True):
                contexts.append((*contexts[parent + 1], token)[-3:])
            rows = np.stack([_table_row(context, VOCAB_SIZE) for context in contexts])
            results.append(TableLogits(rows, prompt_rows))
        assert total <= self.limits.max_num_tokens
        return results

    def commit(self, sequence: TableSequence, nodes: Sequence[int], token_ids: Sequence[int]) -> None:
        assert len(token_ids) > len(nodes)
        sequence.tokens += token_ids
        sequence.num_cached_tokens += len(nodes)
        assert len(sequence.tokens) <= self.limits.max_seq_len

    def release(self, sequence: TableSequence) -> None:
        self.held = [held for held in self.held if held is not sequence]

    def forget_cached(self) -> None:
        """Nothing is kept."""

    @property
    def reuse(self) -> ReuseCounters:
        return ReuseCounters(num_opened=self.num_opened)


def plain_decode(request: GenerationRequest, max_seq_len: int = 256) -> list[int]:
    """The reference: one token at a time straight from the table, no drafts, no engine, no session. Tests ask for the
    same output many times, so each is computed once."""
    return list(_plain_decode(pickle.dumps(replace(request, request_id="")), max_seq_len))


@functools.cache
def _plain_decode(pickled: bytes, max_seq_len: int) -> list[int]:
    from pipeline.decoding.sampling import choose_token

    request: GenerationRequest = pickle.loads(pickled)
    tokens = request.prompt_ids.tolist()
    output: list[int] = []
    while len(output) < request.max_new_tokens and len(tokens) < max_seq_len:
        token = choose_token(request, table_logits(tokens), np.asarray(tokens, np.int32))
        tokens.append(token)
        output.append(token)
        if token in request.end_ids or any(tuple(output[-len(stop) :]) == stop for stop in request.stop_sequences):
            break
    return output


_request_numbers = itertools.count()


def make_request(prompt: Sequence[int] = (1, 2, 3), max_new_tokens: int = 20, **fields: object) -> GenerationRequest:
    sampling = fields.pop("sampling", SamplingParams())
    return GenerationRequest(
        f"request-{next(_request_numbers)}",
        np.asarray(prompt, np.int32),
        max_new_tokens,
        sampling=sampling,  # type: ignore[arg-type]
        **fields,  # type: ignore[arg-type]
    )


class HostileSource:
    """Proposes random trees, some of them right, some broken: too large, too deep, cyclic, outside the vocabulary."""

    name = "trie"
    atomic = False
    needs_top_k = 0

    def __init__(self, seed: int = 0, broken: float = 0.2) -> None:
        self._random = np.random.default_rng(seed)
        self._broken = broken

    def start(self, request_id: str, prompt_ids: IntArray, namespace: str) -> None: ...

    def propose(self, request_id: str, context: IntArray, budget: DraftBudget) -> DraftTree:
        random = self._random
        if random.random() < self._broken:
            return self._rubbish(budget)
        size = int(random.integers(0, budget.max_nodes + 1))
        tokens, parents, depth = [], [], []
        paths: dict[int, list[int]] = {-1: []}
        for node in range(size):
            parent = int(random.integers(-1, node))
            if parent >= 0 and depth[parent] >= budget.max_depth:
                parent = -1
            known = context.tolist() + paths[parent]
            right = int(table_logits(known).argmax())
            token = right if random.random() < 0.7 else int(random.integers(0, VOCAB_SIZE))
            tokens.append(token)
            parents.append(parent)
            depth.append(1 if parent < 0 else depth[parent] + 1)
            paths[node] = paths[parent] + [token]
        return tree_from_lists(tokens, parents)

    def _rubbish(self, budget: DraftBudget) -> DraftTree:
        kind = int(self._random.integers(0, 5))
        if kind == 0:
            raise RuntimeError("this source always fails a little")
        if kind == 1:
            return DraftTree(np.asarray([VOCAB_SIZE + 7, -3], np.int32), np.asarray([-1, 0], np.int32))
        if kind == 2:
            return DraftTree(np.asarray([1, 2], np.int32), np.asarray([1, 0], np.int32))
        if kind == 3:
            size = budget.max_nodes + 5
            return DraftTree(np.ones(size, np.int32), np.arange(-1, size - 1, dtype=np.int32))
        return EMPTY_TREE

    def update(self, request_id: str, step: StepResult) -> None: ...

    def stop(self, request_id: str) -> None: ...


def make_scheduler(
    source: object | None = None,
    *,
    engine: Engine | None = None,
    drafter: Drafter | None = None,
    planner: Planner | None = None,
    budget: tuple[int, int] = (10, 6),
    max_queue_size: int = 64,
    prefill_chunk: int = 16,
    compiler: Compiler | None = None,
) -> Scheduler:
    """A scheduler over the table or another engine, with one draft source or a drafter; without both, hostile drafts.
    budget: nodes and depth of a tree."""
    engine = engine or TableEngine()  # type: ignore[assignment]
    return Scheduler(
        engine,
        drafter or Drafter([source or HostileSource()], engine.limits.vocab_size),  # type: ignore[list-item]
        planner or FixedPlanner(),
        default_budget=DraftBudget(*budget),
        max_queue_size=max_queue_size,
        prefill_chunk=prefill_chunk,
        compiler=compiler,
    )
