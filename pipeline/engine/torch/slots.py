"""Engines over the slots of a KV cache: assignment of sequences to slots, reuse of cached prefixes, and the rows of a
pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from pipeline.decoding.tree import DraftTree, FloatArray, IntArray, check_tree, depths
from pipeline.engine.contract import EngineLimits, EngineSequence, NodeLogits, ReuseCounters, VerifyItem
from pipeline.errors import BusyError


@dataclass(slots=True, eq=False)
class Slot:
    """One row of the cache. tokens: [max_seq_len]; the first `num_tokens` are known, the first `num_cached_tokens` have
    KV."""

    index: int
    tokens: IntArray
    num_tokens: int = 0
    num_cached_tokens: int = 0
    num_reused_tokens: int = 0
    in_use: bool = False
    last_used: int = 0

    @property
    def num_pending(self) -> int:
        return self.num_tokens - self.num_cached_tokens


class SlotStorage(Protocol):
    """The keys and values of all slots."""

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy the KV of the first `length` positions of one slot to another."""

    def move_path(self, slot: int, start: int, nodes: Sequence[int]) -> None:
        """Move the KV at start + nodes (ascending) to start, start + 1, ..."""


class Segment(NamedTuple):
    """One sequence's rows in a pass: pending tokens, then the nodes of a tree. start: first row. cached: number of
    tokens whose KV was computed before."""

    slot: Slot
    tree: DraftTree
    start: int
    cached: int
    num_pending: int

    @property
    def length(self) -> int:
        return self.num_pending + len(self.tree)

    @property
    def token_ids(self) -> IntArray:
        """[length] The pending tokens, then those of the tree."""
        pending = self.slot.tokens[self.cached : self.cached + self.num_pending]
        return np.concatenate([pending, self.tree.token_ids])

    @property
    def positions(self) -> IntArray:
        """[length] absolute. That of a node is the last pending token's plus the node's depth."""
        end = self.cached + self.num_pending
        return np.concatenate([np.arange(self.cached, end, dtype=np.int32), end - 1 + depths(self.tree)])


class PassLogits(Protocol):
    """Logits of the wanted rows of a pass."""

    choices: IntArray  # [rows] greedy choice per row

    def rows(self, part: slice) -> FloatArray:
        """[part, vocab] float32 logits."""

    def top_k(self, part: slice, k: int) -> tuple[IntArray, FloatArray]:
        """[part, k] see `NodeLogits.top_k`."""


class SlotLogits(NamedTuple):
    """Implements `pipeline.engine.contract.NodeLogits`. nodes: rows of root and tree among those of the pass. prompt:
    rows of the pending tokens, if requested."""

    logits: PassLogits
    nodes: slice
    prompt: slice

    @property
    def choices(self) -> IntArray:
        return self.logits.choices[self.nodes]

    def row(self, index: int) -> FloatArray:
        row_index = self.nodes.start + index
        row: FloatArray = self.logits.rows(slice(row_index, row_index + 1))[0]
        return row

    def top_k(self, k: int) -> tuple[IntArray, FloatArray]:
        return self.logits.top_k(self.nodes, k)

    def pending(self) -> list[FloatArray]:
        return list(self.logits.rows(self.prompt))


class SlotEngine(ABC):
    """Base of engines over slots. A subclass computes the passes. A released slot keeps its KV until another sequence
    claims it. reuse: counts of reuse so far."""

    def __init__(self, limits: EngineLimits, storage: SlotStorage, num_slots: int) -> None:
        """num_slots: rows of the KV cache; those beyond `limits.max_batch_size` keep finished sequences for reuse."""
        self.limits = limits
        self.reuse = ReuseCounters()
        self._storage = storage
        self._slots = [Slot(index, np.zeros(limits.max_seq_len, np.int32)) for index in range(num_slots)]
        self._clock = 0

    @abstractmethod
    def _compute(self, segments: Sequence[Segment], wanted: IntArray, num_top: int) -> PassLogits:
        """Run one pass and store its KV. wanted: rows whose logits are needed. num_top: the largest of
        `VerifyItem.num_top`."""

    def verify(self, items: Sequence[VerifyItem]) -> list[NodeLogits | None]:
        segments: list[Segment] = []
        wanted: list[int] = []
        found: list[tuple[slice, slice] | None] = []  # rows of each item among the wanted ones, see `SlotLogits`
        end = 0
        for item in items:
            segment = _segment(item, end, self.limits)
            segments.append(segment)
            end += segment.length
            # With the tree comes the row of the last pending token, which is the root's.
            num_nodes = len(segment.tree) + 1 if segment.num_pending == segment.slot.num_pending else 0
            num_prompt = segment.num_pending if item.pending_rows else 0
            first = len(wanted)
            wanted += range(segment.start if num_prompt else end - num_nodes, end)
            nodes, prompt = slice(len(wanted) - num_nodes, len(wanted)), slice(first, first + num_prompt)
            found.append((nodes, prompt) if num_nodes or num_prompt else None)
        logits = self._compute(segments, np.asarray(wanted, np.int32), max(item.num_top for item in items))
        for segment in segments:
            segment.slot.num_cached_tokens += segment.num_pending
        return [None if rows is None else SlotLogits(logits, *rows) for rows in found]

    def open(self, token_ids: IntArray, reuse: bool = True) -> Slot:
        assert 0 < len(token_ids) <= self.limits.max_seq_len, "a sequence has a token, and fits into a slot"
        assert 0 <= np.min(token_ids) <= np.max(token_ids) < self.limits.vocab_size, "tokens are of the vocabulary"
        free = [slot for slot in self._slots if not slot.in_use]
        if not free:
            raise BusyError(f"all {len(self._slots)} sequences of the engine are in use; send the request again later")
        length, source = max(
            ((_common_prefix(slot, token_ids), slot) for slot in self._slots), key=lambda match: match[0]
        )
        length = length if reuse else 0
        # A sequence takes over a slot if it continues at least half of it. A shorter shared prefix (a system prompt) is
        # copied instead, so that the older conversation stays cached.
        if not source.in_use and 2 * length >= source.num_cached_tokens:
            target = source
        else:
            target = min(free, key=lambda slot: slot.last_used)
            if target is not source and length:
                self._storage.copy_prefix(source.index, target.index, length)
        target.tokens[: len(token_ids)] = token_ids
        target.num_tokens = len(token_ids)
        target.num_cached_tokens = target.num_reused_tokens = length
        target.in_use = True
        self.reuse.num_opened += 1
        self.reuse.num_hits += length > 0
        self.reuse.num_reused_tokens += length
        self.reuse.num_prompt_tokens += len(token_ids)
        return target

    def commit(self, sequence: EngineSequence, nodes: Sequence[int], token_ids: Sequence[int]) -> None:
        slot = slot_of(sequence)
        # The KV of the nodes follows that of the cached tokens, in tree order.
        num_unmoved = next((index for index, node in enumerate(nodes) if node != index), len(nodes))
        if num_unmoved < len(nodes):
            moved = [node - num_unmoved for node in nodes[num_unmoved:]]
            self._storage.move_path(slot.index, slot.num_cached_tokens + num_unmoved, moved)
        slot.num_cached_tokens += len(nodes)
        slot.tokens[slot.num_tokens : slot.num_tokens + len(token_ids)] = token_ids
        slot.num_tokens += len(token_ids)

    def release(self, sequence: EngineSequence) -> None:
        slot = slot_of(sequence)
        assert slot.in_use, "a sequence is released once: afterwards its slot may belong to another one"
        self._clock += 1
        slot.in_use, slot.last_used = False, self._clock

    def forget_cached(self) -> None:
        for slot in self._slots:
            if not slot.in_use:
                slot.num_tokens = slot.num_cached_tokens = 0


def slot_of(sequence: EngineSequence) -> Slot:
    """Return the slot of a sequence. Asserts that the sequence is from a slot engine."""
    assert isinstance(sequence, Slot), "the sequence belongs to another engine"
    return sequence


def _segment(item: VerifyItem, start: int, limits: EngineLimits) -> Segment:
    """The rows of an item. Asserts the contract of `Engine.verify`."""
    slot = slot_of(item.sequence)
    num_pending = slot.num_pending if item.num_pending is None else item.num_pending
    assert 0 < num_pending <= slot.num_pending, "a pass must compute at least one pending token of each sequence"
    if len(item.tree):
        assert num_pending == slot.num_pending, "a tree hangs below the last pending token, so all must be in the pass"
        check_tree(item.tree, limits.vocab_size)
    cached, end = slot.num_cached_tokens, slot.num_cached_tokens + num_pending
    assert end + len(item.tree) <= limits.max_seq_len, "sequence and drafts exceed the slot"
    return Segment(slot, item.tree, start, cached, num_pending)


def _common_prefix(slot: Slot, token_ids: IntArray) -> int:
    length = min(slot.num_cached_tokens, len(token_ids) - 1)
    differs = np.flatnonzero(slot.tokens[:length] != token_ids[:length])
    return int(differs[0]) if len(differs) else length
