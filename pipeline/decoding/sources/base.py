"""The contract of a draft source: it guesses how a sequence continues, and learns from the emitted tokens.

A source never decides a token; it only costs or saves time. It is created as `Class(config, lookahead)`. A new one is
one file and one row of `pipeline.config.schema.source_registry` (docs/how-to/add-a-draft-source.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pipeline.decoding.request import StepResult
from pipeline.decoding.tree import DraftTree, IntArray


@dataclass(frozen=True, slots=True)
class DraftBudget:
    """Upper bounds of one proposal. max_nodes: nodes of the tree. max_depth: tokens on its longest path; fixed nodes of
    a window may be deeper, because they look further ahead."""

    max_nodes: int
    max_depth: int


class DraftSource(Protocol):
    """Calls for one request come in the order start, (propose, update)*, stop; requests interleave freely.

    needs_top_k: how many of the target's most probable tokens per node `update` wants to see; 0 for none.
    """

    name: str
    needs_top_k: int

    def start(self, request_id: str, prompt_ids: IntArray, namespace: str) -> None:
        """A request begins. prompt_ids: [prompt_len]. namespace: the tenant whose tokens it may see."""

    def propose(self, request_id: str, context: IntArray, budget: DraftBudget) -> DraftTree:
        """Draft what may follow context [len], with estimated path probabilities. May be empty."""

    def update(self, request_id: str, step: StepResult, nodes: IntArray) -> None:
        """Learn from a step. nodes: [own nodes] index in `step.tree` of each node of this source's proposal; -1 if it
        was not verified. Called after every step, including those in which this source proposed nothing."""

    def stop(self, request_id: str) -> None:
        """The request ended or was cancelled: forget what is private to it. Calling it again does nothing."""
