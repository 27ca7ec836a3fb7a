"""Plans the next call to the target: how much of a drafted tree to send, and how many tokens to request.

An engine for external drafts (TensorRT-LLM) verifies one chain per call and then ends the request, so each call sends
the whole context again; without a draft a call decodes a chunk of tokens. Every size is cut here to the engine's
limits, because it would refuse the rest, or drop it silently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import EMPTY_TREE, DraftTree, children_of, select_nodes
from pipeline.engine.chains import RuntimeLimits
from pipeline.triton_models.call_costs import CallCosts

# Tokens per call without a draft: enough to spread the cost of a call, few enough to draft again soon.
CHUNK_TOKENS = 4
# Additional tokens where a grammar may force some: keys and punctuation of JSON come in runs.
FORCED_TOKENS = 24
# Limit of the chunk length after several calls without drafts.
MAX_CHUNK_TOKENS = 16
# Without our drafts a client of the torch engine gets the text in pieces of this many tokens, one call each; the window
# starts again with every call.
PIECE_TOKENS = {"none": 4, "lookahead": 16}
# Without a stream a call may be longer, but short enough for requests that wait for a slot.
LONGEST_PIECE = 64
# A chain is the best branch of a tree this many times as large as the chain may be long.
_TREE_FACTOR = 4


class Step(NamedTuple):
    """tree: drafts to send, none if empty. num_tokens: request_output_len. unsent: drafts that do not pay for a call of
    their own; the response of the call shows whether they were right."""

    tree: DraftTree
    num_tokens: int
    unsent: DraftTree = EMPTY_TREE


@dataclass(slots=True)
class ChainSteps:
    """Steps of one request to an engine for external drafts. max_drafts: longest chain that the request wants. costs:
    by which drafts must pay; None sends all that fit."""

    limits: RuntimeLimits
    max_drafts: int
    costs: CallCosts | None
    chunk: int = CHUNK_TOKENS

    def next(self, tree: DraftTree, context_len: int, remaining: int) -> Step:
        """The next call. context_len: prompt and output so far. remaining: tokens still wanted, at least 1.

        A call with drafts ends after one step, with at most one token more than it has drafts. Drafts beyond a limit
        would fail the call or be dropped silently."""
        limits, room = self.limits, self.limits.longest_prompt - context_len
        if remaining > room and self.chunk > room:
            # After this call the context would be too long to be sent as a prompt, so this call decodes all the rest.
            return Step(EMPTY_TREE, remaining)
        chain = main_chain(tree, self.max_drafts)
        if self.costs is not None:
            chain = main_chain(chain, self.costs.num_paying(chain, self.chunk))
        num_drafts = min(
            len(chain),
            limits.max_draft_len,
            remaining - 1,
            room - 1 if remaining > room else room,
            (limits.max_seq_len - context_len - 1) // 2,  # the drafts, their reserve and one token more
        )
        if num_drafts > 0:
            self.chunk = CHUNK_TOKENS
            return Step(main_chain(chain, num_drafts), num_drafts + 1)
        num_tokens = max(1, min(self.chunk, remaining, limits.usable_seq_len - context_len))
        self.chunk = min(2 * self.chunk, MAX_CHUNK_TOKENS)
        return Step(EMPTY_TREE, num_tokens)


def tree_budget(budget: DraftBudget, limits: RuntimeLimits) -> DraftBudget:
    """Draft budget whose best branch is a chain for an engine of these limits."""
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
