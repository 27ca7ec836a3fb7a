"""The contract of a draft source: it proposes continuations of a sequence, and learns from the emitted tokens.

A source affects speed only, never a token. It is created as `Class(config, lookahead)`. A new source is one file and
one row of `pipeline.config.schema.source_registry` (docs/how-to/add-a-draft-source.md).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from pipeline.decoding.request import StepResult
from pipeline.decoding.tree import DraftTree, IntArray


class DraftBudget(NamedTuple):
    """Bounds of one proposal. max_nodes: nodes of the tree. max_depth: tokens on its longest path; only the fixed nodes
    of a window may be deeper. least_probability: of paths that are worth a node; sources may propose less likely ones.
    """

    max_nodes: int
    max_depth: int
    least_probability: float = 0.0


class DraftSource(Protocol):
    """Calls for one request come in the order start, (propose, update)*, stop; requests interleave freely.

    needs_top_k: number of the target's most probable tokens per node that `update` needs; 0 for none.
    """

    name: str
    needs_top_k: int

    def start(self, request_id: str, prompt_ids: IntArray, namespace: str) -> None:
        """Register a request. prompt_ids: [prompt_len]. namespace: the tenant whose stored tokens it may use."""

    def propose(self, request_id: str, context: IntArray, budget: DraftBudget) -> DraftTree:
        """Return a draft tree below the last token of context [len], with estimated path probabilities. It may be
        empty."""

    def update(self, request_id: str, step: StepResult) -> None:
        """Learn from a step. Called after every step, including those in which this source proposed nothing. Steps
        without drafting may come as one."""

    def stop(self, request_id: str) -> None:
        """End a request that finished or was cancelled. No other request may use its private state, except one of the
        same namespace that continues its text. Calling it again does nothing."""
