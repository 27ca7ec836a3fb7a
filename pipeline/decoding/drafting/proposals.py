"""Checks the trees of the draft sources and merges them."""

from __future__ import annotations

import numpy as np

from pipeline.decoding.compiled import Plain, compiled
from pipeline.decoding.drafting.nodes import Nodes, child_of
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import DraftTree, FloatArray, IntArray, read_only

# Conditional probability of nodes that a source gives no estimate for.
UNKNOWN_PROBABILITY = 0.67
NO_PROBABILITIES: FloatArray = np.empty(0, np.float32)


def add_tree(nodes: Nodes, channel: int, tree: DraftTree, budget: DraftBudget, vocab_size: int) -> None:
    """Merge the tree of a source into the nodes, equal paths once. channel: of the source. Raises ValueError, and adds
    nothing, if it is no tree, exceeds the budget or leaves the vocabulary."""
    token_ids, parents, num_nodes = tree.token_ids, tree.parents, len(tree)
    probabilities = NO_PROBABILITIES if tree.probabilities is None else tree.probabilities
    if token_ids.dtype != np.int32 or parents.dtype != np.int32:
        raise ValueError(f"draft tokens and parents must be int32, found {token_ids.dtype}, {parents.dtype}")
    if token_ids.shape != parents.shape or token_ids.ndim != 1:
        raise ValueError(f"draft tokens and parents have the shapes {token_ids.shape}, {parents.shape}")
    if tree.probabilities is not None and probabilities.shape != token_ids.shape:
        raise ValueError(f"{num_nodes} draft nodes have probabilities of shape {probabilities.shape}")
    if not tree.num_fixed <= num_nodes <= budget.max_nodes:
        raise ValueError(f"the proposal has {num_nodes} nodes, {tree.num_fixed} of them fixed; the budget is {budget}")
    faulty = _merge(
        tuple(nodes),
        channel,
        read_only(np.ascontiguousarray(token_ids)),
        read_only(np.ascontiguousarray(parents)),
        read_only(np.ascontiguousarray(probabilities, np.float32)),
        tree.num_fixed,
        budget.max_depth,
        vocab_size,
    )
    if faulty >= 0:
        raise ValueError(
            f"draft node {faulty} has token {token_ids[faulty]} and parent {parents[faulty]}. A token must be below "
            f"{vocab_size}, a parent precede its child, the depth be at most {budget.max_depth}, a probability finite"
        )


@compiled
def _merge(
    arrays: Plain,
    channel: int,
    token_ids: IntArray,
    parents: IntArray,
    probabilities: FloatArray,
    num_fixed: int,
    max_depth: int,
    vocab_size: int,
) -> int:
    """Merge a tree into the nodes. probabilities: [n] of paths, or empty if unknown. Returns the first faulty node, in
    which case nothing is added; -1 if there is none."""
    nodes = Nodes(*arrays)
    depths = np.empty(len(token_ids), np.int32)
    for node in range(len(token_ids)):
        above = parents[node]
        if not -1 <= above < node or not 0 <= token_ids[node] < vocab_size:
            return node
        depths[node] = depths[above] + 1 if above >= 0 else 1
        if node >= num_fixed and depths[node] > max_depth:
            return node
        if len(probabilities) and not np.isfinite(probabilities[node]):
            return node
    merged = np.empty(len(token_ids), np.int32)
    for node in range(len(token_ids)):
        above = parents[node]
        conditional = UNKNOWN_PROBABILITY
        if len(probabilities):
            path_above = max(probabilities[above], 1e-30) if above >= 0 else 1.0
            conditional = min(max(probabilities[node] / path_above, 1e-4), 1.0)
        child = child_of(nodes, merged[above] if above >= 0 else 0, token_ids[node])
        nodes.channel_probs[child, channel] = max(nodes.channel_probs[child, channel], conditional)
        if node < num_fixed:
            nodes.records[child].fixed = 1
        merged[node] = child
    return -1
