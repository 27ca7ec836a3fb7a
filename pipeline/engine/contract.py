"""The engine contract: the interface between the decode loop and an engine in the same process.

A *sequence* is the state of a request in the engine: its tokens, and the KV cache of those already computed. Tokens
that are known but not computed yet are *pending* (first the prompt, then the last accepted token). A verify step
computes pending tokens and, after the last of them (the root), the nodes of a draft tree, for several sequences in one
pass:

    [ cached KV | pending tokens | tree nodes ]     ->  logits after the root and after every node
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pipeline.decoding.tree import EMPTY_TREE, DraftTree, FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Limits of an engine. max_batch_size: concurrent sequences. max_seq_len: prompt, output and drafts of a sequence.
    max_num_tokens: tokens of a pass over all sequences. max_draft_tokens: nodes of a tree."""

    max_batch_size: int
    max_seq_len: int
    max_num_tokens: int
    max_draft_tokens: int
    vocab_size: int


class EngineSequence(Protocol):
    """A sequence held by an engine. Only the engine changes it."""

    @property
    def num_cached_tokens(self) -> int:
        """Number of tokens whose KV is computed."""

    @property
    def num_reused_tokens(self) -> int:
        """Number of tokens whose KV was in the cache when the sequence was opened."""

    @property
    def num_pending(self) -> int:
        """Number of known tokens whose KV is not computed yet; never 0 between steps."""


class VerifyItem(NamedTuple):
    """One sequence's part of a pass: its first `num_pending` pending tokens (None: all), and a tree after the last one.
    pending_rows: also return the logits after the pending tokens. num_top: the k that `NodeLogits.top_k` will be asked
    for, which an engine may compute during the pass; 0 for none."""

    sequence: EngineSequence
    tree: DraftTree = EMPTY_TREE
    num_pending: int | None = None
    pending_rows: bool = False
    num_top: int = 0


class NodeLogits(Protocol):
    """The target's logits after the root (row 0) and after each node i (row i + 1) of one tree."""

    @property
    def choices(self) -> IntArray:
        """[n + 1] greedy choice per row."""

    def row(self, index: int) -> FloatArray:
        """[vocab] float32 logits of one row."""

    def top_k(self, k: int) -> tuple[IntArray, FloatArray]:
        """[n + 1, k] most probable tokens, best first, and their probabilities, which may be estimates."""

    def pending(self) -> list[FloatArray]:
        """[num_pending][vocab] float32 logits after each pending token of the pass; empty unless the item has
        pending_rows."""


@dataclass(slots=True)
class ReuseCounters:
    """Prefix reuse since the start. num_hits: sequences with reused KV, of num_opened. num_reused_tokens: their tokens
    with reused KV, of num_prompt_tokens."""

    num_hits: int = 0
    num_opened: int = 0
    num_reused_tokens: int = 0
    num_prompt_tokens: int = 0


class Engine(Protocol):
    """An engine in the same process. Not thread safe: one thread owns it."""

    @property
    def limits(self) -> EngineLimits: ...

    def open(self, token_ids: IntArray, reuse: bool = True) -> EngineSequence:
        """Claim a slot for token_ids [len >= 1]. With `reuse`, use the KV of the longest cached prefix of at most
        len - 1 tokens. The tokens fit into a sequence and lie in the vocabulary (`check_submission`). Raises BusyError
        if no slot is free."""

    def verify(self, items: Sequence[VerifyItem]) -> list[NodeLogits | None]:
        """Run one pass over all items. Returns None for an item that leaves tokens pending, unless it has pending_rows;
        then its logits hold those rows only. Pending tokens become cached; no other KV that a later step uses
        changes."""

    def commit(self, sequence: EngineSequence, nodes: Sequence[int], token_ids: Sequence[int]) -> None:
        """Call after `verify` with a tree: keep the KV of the accepted path `nodes`, drop the other nodes, and append
        token_ids (the path's tokens and at least one more; the tokens after the path become pending)."""

    def release(self, sequence: EngineSequence) -> None:
        """Free the slot of a sequence that is not released yet. Later sequences with the same prefix may reuse its
        KV."""

    def forget_cached(self) -> None:
        """Drop the KV of released sequences, so that later sequences cannot reuse it."""

    @property
    def reuse(self) -> ReuseCounters:
        """Counts of reuse so far."""
