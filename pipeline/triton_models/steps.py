"""What to ask of the target next: how much of a drafted tree to send, and for how many tokens.

An engine for external drafts (TensorRT-LLM) verifies one chain per call and then ends the request, so each call sends
all tokens so far again; without a draft a call decodes a chunk of tokens instead. Every size is cut here to what the
engine takes, as it would refuse the rest, or drop it without a word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import EMPTY_TREE, DraftTree, children_of, select_nodes
from pipeline.engine.chains import RuntimeLimits, external_step
from pipeline.triton_models.call_costs import CallCosts

# Tokens asked for when there is no draft: enough to spread the cost of a call, few enough to draft again soon.
CHUNK_TOKENS = 4
# More of them are asked for where a grammar may force some: keys and punctuation of JSON come in runs.
FORCED_TOKENS = 24
# Where nothing can be drafted for long, chunks grow up to this.
MAX_CHUNK_TOKENS = 16
# Without drafts of ours a streaming client gets the text in pieces of so many tokens, each from a call of its own;
# an engine's own lookahead begins anew with every call.
PIECE_TOKENS = {"none": 4, "lookahead": 16}
# Without a stream a call may be longer, but not so long that requests that wait for a place wait long.
LONGEST_PIECE = 64
# A chain is the best branch of a tree this many times as large as the chain may be long.
_TREE_FACTOR = 4


class Step(NamedTuple):
    """tree: drafts to send, none if empty. num_tokens: request_output_len."""

    tree: DraftTree
    num_tokens: int


@dataclass(slots=True)
class ChainSteps:
    """Steps of one request to an engine for external drafts. max_drafts: longest chain that the request wants. costs:
    by which drafts must pay; None sends all that fit."""

    limits: RuntimeLimits
    max_drafts: int
    costs: CallCosts | None
    chunk: int = CHUNK_TOKENS

    def next(self, tree: DraftTree, context_len: int, remaining: int) -> Step:
        """The next call. context_len: prompt and output so far. remaining: tokens still wanted, at least 1."""
        room = self.limits.longest_prompt - context_len
        if _ends_beyond(self.limits, context_len, remaining, self.chunk):
            return Step(EMPTY_TREE, remaining)
        chain = main_chain(tree, self.max_drafts)
        if self.costs is not None:
            chain = self.costs.cut(chain, self.chunk)
        longest = min(len(chain), room - 1) if remaining > room else len(chain)
        step = external_step(self.limits, longest, context_len, remaining, self.chunk)
        if step.num_drafts:
            self.chunk = CHUNK_TOKENS
            return Step(main_chain(chain, step.num_drafts), step.request_output_len)
        self.chunk = min(2 * self.chunk, MAX_CHUNK_TOKENS)
        return Step(EMPTY_TREE, step.request_output_len)


def next_piece(piece: int, limits: RuntimeLimits | None, context_len: int, remaining: int) -> Step:
    """The next call without drafts of ours, for at most `piece` tokens unless the last one must bring more. limits: of
    an engine of TensorRT-LLM. context_len, remaining: as in `ChainSteps.next`."""
    if limits is not None and _ends_beyond(limits, context_len, remaining, piece):
        return Step(EMPTY_TREE, remaining)
    return Step(EMPTY_TREE, min(piece, remaining))


def _ends_beyond(limits: RuntimeLimits, context_len: int, remaining: int, num_tokens: int) -> bool:
    """Whether the rest of an output must come of one call: it is longer than what can be sent as a prompt again, and
    num_tokens more would not fit any more."""
    room = limits.longest_prompt - context_len
    return remaining > room and num_tokens > room


def tree_budget(budget: DraftBudget, limits: RuntimeLimits) -> DraftBudget:
    """What to draft so that the best branch of it is a chain for an engine of these limits."""
    depth = min(budget.max_depth, limits.max_draft_len, budget.max_nodes)
    return DraftBudget(_TREE_FACTOR * depth, depth)


def main_chain(tree: DraftTree, max_len: int) -> DraftTree:
    """The most probable branch of a tree (the first one, if probabilities are unknown), cut to max_len tokens."""
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
