"""What a verified tree says of the tree that was proposed."""

from __future__ import annotations

import numpy as np

from pipeline.decoding.request import StepResult
from pipeline.decoding.tree import DraftTree, IntArray

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
    """The node that carries the target's own token of a step, and then the nodes below it; none in most steps. Had it
    been verified, it would have been accepted: a planner nearer to the target has left it out. It was right, and of
    what lies below nothing is known."""
    tree = step.tree
    if len(step.token_ids) != len(step.nodes) + 1:
        return NO_NODES
    last = step.nodes[-1] if step.nodes else -1
    found = np.flatnonzero((tree.parents == last) & (tree.token_ids == step.token_ids[-1]))
    below = [int(node) for node in found[:1]]
    if below:
        below += [node for node in range(below[0] + 1, len(tree)) if _is_below(tree, node, below[0])]
    return np.asarray(below, np.int32)


def _is_below(tree: DraftTree, node: int, above: int) -> bool:
    while node > above:
        node = int(tree.parents[node])
    return node == above
