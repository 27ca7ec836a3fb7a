"""Concatenates the trees of the draft sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pipeline.decoding.compiled import Plain, compiled
from pipeline.decoding.tree import BoolArray, DraftTree, FloatArray, IntArray, read_only

# Conditional probability of nodes that a source gives no estimate for.
UNKNOWN_PROBABILITY = 0.67
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


def joined_proposals(trees: Sequence[tuple[int, DraftTree]]) -> Proposals:
    """Concatenate trees, each given with the index of its source."""
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
