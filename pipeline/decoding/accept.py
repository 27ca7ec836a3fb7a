"""Acceptance: walk down the draft tree along the tokens that the target model itself chooses.

The walk is exact for any tree and any draft source: every emitted token is the target's own choice for its context.
Drafts only determine how many of these choices one pass computes (arXiv 2312.12728 section 4.2). Sampled choices are
exact as well, because their noise depends on the position alone (see `sampling`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pipeline.decoding.tree import ROOT, DraftTree


class Accepted(NamedTuple):
    """The part of a draft tree that the target chose. nodes: accepted path, from the root's child down. token_ids: the
    tokens of the path, then the target's next."""

    nodes: list[int]
    token_ids: list[int]


def accept(tree: DraftTree, choose: Callable[[int, Sequence[int]], int]) -> Accepted:
    """Return the longest path of the target's own choices.

    choose(node, emitted): the target's token after `node` (`ROOT` for the last accepted token), given the tokens
    emitted so far. Called once per emitted token, only for nodes of the path.
    """
    token_ids, parents = tree.token_ids.tolist(), tree.parents.tolist()
    node = ROOT
    nodes: list[int] = []
    emitted: list[int] = []
    while True:
        token = choose(node, emitted)
        emitted.append(token)
        later = range(node + 1, len(parents))
        node = next((each for each in later if parents[each] == node and token_ids[each] == token), ROOT)
        if node == ROOT:
            return Accepted(nodes, emitted)
        nodes.append(node)
