"""Joins the trees of the draft sources into one proposal, and finds its nodes in the verified tree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.decoding.compiled import compiled
from pipeline.decoding.growth import Proposals
from pipeline.decoding.request import StepResult
from pipeline.decoding.tree import DraftTree, FloatArray, IntArray, child_with

# Conditional probability of nodes that a source gives no estimate for.
UNKNOWN_PROBABILITY = 0.67
NO_NODES: IntArray = np.empty(0, np.int32)


def joined_proposals(trees: Sequence[tuple[int, DraftTree]], own_nodes: dict[int, slice]) -> Proposals:
    """Concatenate the trees, each with the index of its source, and record in own_nodes the place of each source's
    nodes."""
    if not trees:
        nothing = np.empty(0, np.int32)
        return Proposals(nothing, nothing, np.empty(0, np.float32), nothing, np.empty(0, np.bool_))
    start = 0
    parents: list[IntArray] = []
    for index, tree in trees:
        own_nodes[index] = slice(start, start + len(tree))
        parents.append(np.where(tree.parents < 0, -1, tree.parents + start))
        start += len(tree)
    return Proposals(
        np.concatenate([tree.token_ids for _, tree in trees]).astype(np.int32),
        np.concatenate(parents).astype(np.int32),
        np.concatenate([_conditionals(tree) for _, tree in trees]),
        np.repeat([index for index, _ in trees], [len(tree) for _, tree in trees]).astype(np.int32),
        np.concatenate([np.arange(len(tree)) < tree.num_fixed for _, tree in trees]),
    )


def _conditionals(tree: DraftTree) -> FloatArray:
    """[n] estimated probability of each node given that its parent is accepted."""
    if tree.probabilities is None:
        return np.full(len(tree), UNKNOWN_PROBABILITY, np.float32)
    above = np.where(tree.parents < 0, np.float32(1.0), tree.probabilities[tree.parents])
    conditionals: FloatArray = np.clip(tree.probabilities / np.maximum(above, 1e-30), 1e-4, 1.0).astype(np.float32)
    return conditionals


def places_in(proposed: DraftTree, verified: DraftTree) -> IntArray:
    """[len(proposed)] node of `verified` that each proposed node became, -1 if it was left out."""
    if verified is proposed:
        return np.arange(len(proposed), dtype=np.int32)
    places = np.full(len(proposed), -1, np.int32)
    _find_places(proposed.token_ids, proposed.parents, verified.token_ids, verified.parents, places)
    return places


@compiled
def _find_places(
    token_ids: IntArray, parents: IntArray, verified_ids: IntArray, verified_parents: IntArray, places: IntArray
) -> None:
    for node in range(len(token_ids)):
        above = -1 if parents[node] < 0 else places[parents[node]]
        if parents[node] >= 0 and above < 0:
            continue
        for candidate in range(above + 1, len(verified_ids)):
            if verified_parents[candidate] == above and verified_ids[candidate] == token_ids[node]:
                places[node] = candidate
                break


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
