"""Maps a verified tree back to the proposed tree."""

from __future__ import annotations

import numpy as np

from pipeline.decoding.request import StepResult
from pipeline.decoding.tree import DraftTree, IntArray, child_with

NO_NODES: IntArray = np.empty(0, np.int32)


def places_in(proposed: DraftTree, verified: DraftTree) -> IntArray:
    """[len(proposed)] node of `verified` that each proposed node became, -1 if it was left out."""
    if verified is proposed:
        return np.arange(len(proposed), dtype=np.int32)
    children = {
        (parent, token): node
        for node, (parent, token) in enumerate(zip(verified.parents.tolist(), verified.token_ids.tolist(), strict=True))
    }
    places = np.full(len(proposed), -1, np.int32)
    for node, (parent, token) in enumerate(zip(proposed.parents.tolist(), proposed.token_ids.tolist(), strict=True)):
        if parent < 0 or places[parent] >= 0:
            places[node] = children.get((-1 if parent < 0 else int(places[parent]), token), -1)
    return places


def unsent_nodes(step: StepResult) -> IntArray:
    """The node that carries the target's own token of a step, and the nodes below it; none in most steps. That node was
    proposed but not verified, because a planner nearer to the target left it out. It was correct; nothing is known
    about the nodes below it."""
    tree = step.tree
    if len(step.token_ids) != len(step.nodes) + 1:
        return NO_NODES
    last = step.nodes[-1] if step.nodes else -1
    unsent = child_with(tree, last, step.token_ids[-1])
    if unsent is None:
        return NO_NODES
    below = [node for node in range(unsent + 1, len(tree)) if _is_below(tree, node, unsent)]
    return np.asarray([unsent, *below], np.int32)


def _is_below(tree: DraftTree, node: int, above: int) -> bool:
    while node > above:
        node = int(tree.parents[node])
    return node == above
