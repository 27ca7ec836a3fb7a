"""Concatenates the trees of the draft sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pipeline.decoding.tree import BoolArray, DraftTree, FloatArray, IntArray

# Conditional probability of nodes that a source gives no estimate for.
UNKNOWN_PROBABILITY = 0.67


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


def joined_proposals(trees: Sequence[tuple[int, DraftTree]]) -> Proposals:
    """Concatenate trees, each given with the index of its source."""
    parts = [Proposals._make(np.empty(0, kind) for kind in (np.int32, np.int32, np.float32, np.int32, np.bool_))]
    start = 0
    for index, tree in trees:
        parts.append(
            Proposals(
                tree.token_ids.astype(np.int32),
                np.where(tree.parents < 0, -1, tree.parents + start).astype(np.int32),
                _conditionals(tree),
                np.full(len(tree), index, np.int32),
                np.arange(len(tree)) < tree.num_fixed,
            )
        )
        start += len(tree)
    return Proposals._make(map(np.concatenate, zip(*parts, strict=True)))


def _conditionals(tree: DraftTree) -> FloatArray:
    """[n] probability of each node given its parent."""
    if tree.probabilities is None:
        return np.full(len(tree), UNKNOWN_PROBABILITY, np.float32)
    paths = tree.probabilities.astype(np.float64)
    above = np.where(tree.parents < 0, 1.0, np.maximum(paths[tree.parents], 1e-30))
    conditionals: FloatArray = np.clip(paths / above, 1e-4, 1.0).astype(np.float32)
    return conditionals
