"""Concatenates the trees of the draft sources, and finds their nodes in the verified tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pipeline.decoding.compiled import Plain, compiled
from pipeline.decoding.request import StepResult
from pipeline.decoding.tree import BoolArray, DraftTree, FloatArray, IntArray, children_of, read_only

# Conditional probability of nodes that a source gives no estimate for.
UNKNOWN_PROBABILITY = 0.67
NO_NODES: IntArray = np.empty(0, np.int32)
NO_PROBABILITIES: FloatArray = np.empty(0, np.float32)


class Proposals(NamedTuple):
    """Concatenated trees of several sources.

    token_ids, parents: [total]; parents are indices into the concatenation. conditionals: [total] probability given the
    parent. channels: [total] channel of the proposing source. fixed: [total] True for nodes of a window, which are
    taken first whatever their probability; their parents must be fixed too.
    """

    token_ids: IntArray
    parents: IntArray
    conditionals: FloatArray
    channels: IntArray
    fixed: BoolArray


def joined_proposals(trees: Sequence[tuple[int, DraftTree]], own_nodes: dict[int, slice]) -> Proposals:
    """Concatenate trees, each given with the index of its source. Stores the range of each source's nodes in
    own_nodes."""
    total = sum(len(tree) for _, tree in trees)
    joined = Proposals(
        np.empty(total, np.int32),
        np.empty(total, np.int32),
        np.empty(total, np.float32),
        np.empty(total, np.int32),
        np.empty(total, np.bool_),
    )
    start = 0
    for index, tree in trees:
        own_nodes[index] = slice(start, start + len(tree))
        probabilities = NO_PROBABILITIES if tree.probabilities is None else tree.probabilities
        _append(
            tuple(joined),
            start,
            index,
            read_only(np.ascontiguousarray(tree.token_ids, np.int32)),
            read_only(np.ascontiguousarray(tree.parents, np.int32)),
            read_only(np.ascontiguousarray(probabilities, np.float32)),
            tree.num_fixed,
        )
        start += len(tree)
    return joined


@compiled
def _append(
    joined: Plain,
    start: int,
    channel: int,
    token_ids: IntArray,
    parents: IntArray,
    probabilities: FloatArray,
    num_fixed: int,
) -> None:
    """Write a tree into the proposals from index `start` on. probabilities: [n] of paths, or empty if unknown."""
    proposals = Proposals(*joined)
    for node in range(len(token_ids)):
        above = parents[node]
        conditional = UNKNOWN_PROBABILITY
        if len(probabilities):
            path_above = max(probabilities[above], 1e-30) if above >= 0 else 1.0
            conditional = min(max(probabilities[node] / path_above, 1e-4), 1.0)
        proposals.token_ids[start + node] = token_ids[node]
        proposals.parents[start + node] = above + start if above >= 0 else -1
        proposals.conditionals[start + node] = conditional
        proposals.channels[start + node] = channel
        proposals.fixed[start + node] = node < num_fixed


def places_in(proposed: DraftTree, verified: DraftTree) -> IntArray:
    """[len(proposed)] index in `verified` of each proposed node, -1 if it was left out."""
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
    """Indices of the node that carries the target's own token of a step, and of the nodes below it; empty in most
    steps. Such a node was correct but not verified, because the planner of the engine left it out. Nothing is known
    about the nodes below it."""
    tree = step.tree
    if len(step.token_ids) != len(step.nodes) + 1:
        return NO_NODES
    last = step.nodes[-1] if step.nodes else -1
    unsent = children_of(tree).get(last, {}).get(step.token_ids[-1])
    if unsent is None:
        return NO_NODES
    below = [node for node in range(unsent + 1, len(tree)) if _is_below(tree, node, unsent)]
    return np.asarray([unsent, *below], np.int32)


def _is_below(tree: DraftTree, node: int, above: int) -> bool:
    while node > above:
        node = int(tree.parents[node])
    return node == above
