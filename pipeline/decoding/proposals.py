"""The trees that draft sources propose, put together for the growth of one tree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.decoding.growth import Proposals
from pipeline.decoding.tree import DraftTree, FloatArray, IntArray

# Conditional probability of nodes that a source gives no estimate for.
UNKNOWN_PROBABILITY = 0.67


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
