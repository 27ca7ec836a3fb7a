"""Acceptance: walk down the draft tree along the tokens that the target model itself chooses.

The walk is exact for any tree and any draft source: every emitted token is the target's own choice for its context, and
a draft only decides whether the logits for the next choice are at hand already (arXiv 2312.12728 section 4.2; with
sampled choices this is the coupling by shared noise described in `sampling`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pipeline.decoding.tree import ROOT, DraftTree, children_of


class Accepted(NamedTuple):
    """nodes: accepted path, from the root's child down. token_ids: their tokens and one more, the target's own next."""

    nodes: list[int]
    token_ids: list[int]


def accept(tree: DraftTree, choose: Callable[[int, Sequence[int]], int]) -> Accepted:
    """Follow the target down the tree.

    choose(node, emitted): the target's token after `node` (`ROOT` for the last accepted token), given the tokens that
    this walk has emitted so far. Called once per emitted token, never for a node off the path.
    """
    children = children_of(tree)
    node = ROOT
    nodes: list[int] = []
    emitted: list[int] = []
    while True:
        token = choose(node, emitted)
        emitted.append(token)
        child = children.get(node, {}).get(token)
        if child is None:
            return Accepted(nodes, emitted)
        nodes.append(child)
        node = child
