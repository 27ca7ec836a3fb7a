"""Plans the next call to the target: how many nodes of a draft tree to send, and how many tokens or steps to request.

The torch engine verifies a tree, and may go on for a few steps, with drafts of its own sources (`TreeCallPlanner`). An
engine for external drafts (TensorRT-LLM) verifies one chain per call and then ends the request (`ChainCallPlanner`), so
each call sends the whole context again. A call without drafts decodes a chunk of tokens. Every size is cut to the
engine's limits here, because the engine would refuse a longer request or silently drop its drafts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import EMPTY_TREE, DraftTree, children_of, select_nodes
from pipeline.engine.traits import RuntimeLimits
from pipeline.triton_models.call_costs import CallCosts

# Tokens per call without drafts: enough to amortize the cost of a call, few enough to draft again soon.
CHUNK_TOKENS = 4
# Limit of the chunk, which doubles with each call without drafts.
MAX_CHUNK_TOKENS = 16
# Longest time between two pieces of a stream from the torch engine, unless a single step takes longer.
_PIECE_SECONDS = 0.05
# Limits of the steps of a call, without and with a stream. In steps after the first one the engine's own sources draft.
_MOST_STEPS, _STREAM_STEPS = 16, 4
# Strategies without drafts from the BLS model.
WITHOUT_DRAFTS = ("none", "lookahead")
# Tokens per call to the torch engine under these strategies. Calls are short, because another request can take the slot
# only between two calls. _WINDOW_PIECE is for streams of `lookahead`, whose window restarts with every call.
_LONGEST_PIECE, _WINDOW_PIECE = 64, 16
# Nodes to draft per token of the longest chain; the best branch is sent.
_TREE_FACTOR = 4


class PlannedCall(NamedTuple):
    """The next call to the engine. tree: drafts to send; may be empty. num_tokens: its request_output_len. max_steps:
    number of passes after which it ends; None means one pass with drafts, and no limit without."""

    tree: DraftTree
    num_tokens: int
    max_steps: int | None = None


@dataclass(frozen=True, slots=True)
class TreeCallPlanner:
    """Plans the calls of one request to an engine that verifies trees. is_stream: whether the client receives a stream.
    is_watched: whether calls should be short: for a stream, and for stop words, because the target does not search the
    text for them and would decode far beyond one. has_prediction: whether drafts come from a prediction of the client.
    costs: model of call times; None for a fixed number of steps."""

    is_stream: bool
    is_watched: bool
    has_prediction: bool
    costs: CallCosts | None

    def next(self, tree: DraftTree, remaining: int, is_first: bool) -> PlannedCall:
        """Plan the next call. remaining: tokens still to generate, at least 1. is_first: whether it is the first."""
        if is_first:
            max_steps = 1  # the client waits for a token
        elif self.costs is not None and not self.has_prediction:
            max_steps = self.costs.num_steps(tree, self._most_steps())
        else:  # only the BLS model has the client's prediction, so each step verifies a part of it
            max_steps = 1 if len(tree) else _STREAM_STEPS
        return PlannedCall(tree, remaining, max_steps)

    def next_without_drafts(self, has_window: bool, remaining: int, is_first: bool) -> PlannedCall:
        """Plan the next call of a strategy without drafts from the BLS model. has_window: whether the engine drafts."""
        if not self.is_watched:
            piece = _LONGEST_PIECE
        elif is_first and self.is_stream:
            piece = 1  # the client waits for a token
        else:
            piece = _WINDOW_PIECE if has_window else self._most_steps()
        return PlannedCall(EMPTY_TREE, min(piece, remaining))

    def _most_steps(self) -> int:
        """Maximum number of steps of a call."""
        if not self.is_watched:
            return _MOST_STEPS
        num_passes = None if self.costs is None else self.costs.num_passes(_PIECE_SECONDS, _STREAM_STEPS)
        return num_passes or _STREAM_STEPS


@dataclass(slots=True)
class ChainCallPlanner:
    """Plans the calls of one request to an engine for external drafts. max_drafts: the request's limit of a chain's
    length. costs: model of call times, to send only drafts that save time; None sends all that fit."""

    limits: RuntimeLimits
    max_drafts: int
    costs: CallCosts | None
    chunk: int = CHUNK_TOKENS

    def next(self, tree: DraftTree, context_len: int, remaining: int) -> PlannedCall:
        """Plan the next call. context_len: tokens of prompt and output so far. remaining: tokens still to generate, at
        least 1; with the context at most `usable_seq_len`, which leaves room for drafts. A call with drafts ends after
        one step, with at most one token more than it has drafts."""
        limits, room = self.limits, self.limits.longest_prompt - context_len
        if remaining > room and self.chunk > room:
            # After this call the context would be too long for a prompt, so this call decodes all remaining tokens.
            return PlannedCall(EMPTY_TREE, remaining)
        chain = main_chain(tree, self.max_drafts)
        if self.costs is not None:
            chain = main_chain(chain, self.costs.best_num_drafts(chain, self.chunk))
        num_drafts = min(len(chain), limits.max_draft_len, remaining - 1, room - 1)
        if num_drafts > 0:
            self.chunk = CHUNK_TOKENS
            return PlannedCall(main_chain(chain, num_drafts), num_drafts + 1)
        num_tokens = min(self.chunk, remaining)
        self.chunk = min(2 * self.chunk, MAX_CHUNK_TOKENS)
        return PlannedCall(EMPTY_TREE, num_tokens)


def tree_budget(budget: DraftBudget, limits: RuntimeLimits) -> DraftBudget:
    """The `chain_budget` of a request, within the limits of its engine."""
    return chain_budget(min(budget.max_depth, limits.max_draft_len, budget.max_nodes))


def chain_budget(max_len: int) -> DraftBudget:
    """Draft budget for trees whose best branch is sent as a chain of at most max_len tokens."""
    return DraftBudget(_TREE_FACTOR * max_len, max_len)


def main_chain(tree: DraftTree, max_len: int) -> DraftTree:
    """The most probable branch of a tree, cut to max_len tokens; the first branch if probabilities are unknown."""
    children = children_of(tree)
    keep = np.zeros(len(tree), np.bool_)
    node = -1
    for _ in range(max_len):
        below = list(children.get(node, {}).values())
        if not below:
            break
        node = below[0] if tree.probabilities is None else max(below, key=tree.probabilities.__getitem__)
        keep[node] = True
    return select_nodes(tree, keep)
