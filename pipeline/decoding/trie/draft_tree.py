"""Grows a draft tree best first from two tries."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.decoding.compiled import Plain, float32, int64, kernel
from pipeline.decoding.tree import FloatArray, IntArray
from pipeline.decoding.trie.next_tokens import next_tokens
from pipeline.decoding.trie.suffixes import Workspace, extend_context, find_context, pair_of

MAX_CANDIDATES = 128
# Paths less likely than this are not worth a node.
LEAST_PROBABILITY = float32(2e-4)
# A path is extended only if it is this many times as likely as the least likely node in the tree.
WORTH_EXTENDING = float32(2.0)


class DraftBuffers(NamedTuple):
    """Memory of a growing tree.

    token_ids, parents, path_probabilities: [max_nodes] the taken nodes, then the candidates. depths: [max_nodes + 1],
    entry 0 for the root. next_ids, next_probabilities: [MAX_CANDIDATES] possible next tokens of the node that is being
    extended.
    """

    token_ids: IntArray
    parents: IntArray
    path_probabilities: FloatArray
    depths: IntArray
    next_ids: IntArray
    next_probabilities: FloatArray


def new_buffers(max_nodes: int) -> DraftBuffers:
    """Buffers for trees of up to max_nodes nodes."""
    return DraftBuffers(
        np.zeros(max_nodes, np.int32),
        np.zeros(max_nodes, np.int32),
        np.zeros(max_nodes, np.float32),
        np.zeros(max_nodes + 1, np.int32),
        np.zeros(MAX_CANDIDATES, np.int32),
        np.zeros(MAX_CANDIDATES, np.float32),
    )


@kernel
def grow_draft_tree(
    pair_arrays: Plain,
    work_arrays: Plain,
    buffer_arrays: Plain,
    context: IntArray,
    escape_counts: FloatArray,
    max_nodes: int,
    max_depth: int,
    single_from: int,
) -> int:
    """Fill the buffers with the most likely paths after context [len], most likely first. Returns the number of nodes.

    The buffers must hold max_nodes nodes, the workspace max_nodes + 1 rows. single_from: depth from which a node gets
    its most likely child only; the root has depth 0.
    """
    pair, work, buffers = pair_of(pair_arrays), Workspace(*work_arrays), DraftBuffers(*buffer_arrays)
    node_token, node_parent, node_path = buffers.token_ids, buffers.parents, buffers.path_probabilities
    depth, tokens, probabilities = buffers.depths, buffers.next_ids, buffers.next_probabilities
    find_context(pair, work, context)
    taken = size = 0
    least = LEAST_PROBABILITY
    # Nodes and candidates are sorted by path probability, which never grows along a path.
    while taken < max_nodes:
        # Expand the node taken last, whose row is `taken`; row 0 is the root.
        path = node_path[taken - 1] if taken else float32(1.0)
        if depth[taken] < max_depth and path > WORTH_EXTENDING * least:
            if taken:
                extend_context(pair, work, taken, node_parent[taken - 1] + 1, node_token[taken - 1])
            num_found = next_tokens(pair, work, taken, escape_counts, tokens, probabilities, float32(least / path))
            if depth[taken] >= single_from and num_found:
                best = int64(np.argmax(probabilities[:num_found]))
                tokens[0], probabilities[0], num_found = tokens[best], probabilities[best], 1
            for index in range(num_found):
                candidate = path * probabilities[index]
                if candidate <= least:
                    continue
                target = min(size, max_nodes - 1)
                while target > taken and node_path[target - 1] < candidate:
                    node_path[target] = node_path[target - 1]
                    node_token[target] = node_token[target - 1]
                    node_parent[target] = node_parent[target - 1]
                    target -= 1
                node_path[target] = candidate
                node_token[target] = tokens[index]
                node_parent[target] = taken - 1
                size = min(size + 1, max_nodes)
                if size == max_nodes:
                    least = node_path[max_nodes - 1]
        if taken == size:
            break
        taken += 1
        depth[taken] = depth[node_parent[taken - 1] + 1] + 1
    return taken
