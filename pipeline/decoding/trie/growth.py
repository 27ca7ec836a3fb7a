"""Growing a draft tree best first from what two tries say."""

from __future__ import annotations

import numpy as np

from pipeline.decoding.compiled import compiled
from pipeline.decoding.tree import FloatArray, IntArray
from pipeline.decoding.trie.contexts import Pair, enter, find_context, look_ahead
from pipeline.decoding.trie.estimate import gather
from pipeline.decoding.trie.layout import LongArray, view_from
from pipeline.decoding.trie.memory import float32, int32, int64, store32
from pipeline.decoding.trie.workspace import MAX_CANDIDATES, workspace_from

# Paths less likely than this are not worth a node.
LEAST_PROBABILITY = np.float32(2e-4)
# A path is gone on with only if it is so many times as likely as the least likely node that there is room for.
WORTH_OPENING = np.float32(4.0)


@compiled
def grow_tree(
    own: LongArray,
    shared: LongArray,
    roots: tuple[int, int],
    memory: LongArray,
    context: IntArray,
    doubts: FloatArray,
    max_nodes: int,
    max_depth: int,
    root_fan: int,
    fan: int,
) -> tuple[IntArray, IntArray, FloatArray]:
    """The most likely paths after context [len]: token_ids, parents, path probabilities, most likely first.

    own, shared: fields of the tries' views. roots: rows of their roots. memory: fields of a workspace with room for
    max_nodes + 1 rows. root_fan, fan: how many children the root and other nodes may have.
    """
    # Nothing below would stop at a tree without room: what is likely would be written before its arrays.
    max_nodes = max(max_nodes, 0)
    tokens = np.empty(MAX_CANDIDATES, np.int32)
    probs = np.empty(MAX_CANDIDATES, np.float32)
    pair = Pair(view_from(own), view_from(shared), roots[0], roots[1])
    work = workspace_from(memory)
    find_context(pair, context, work)
    # Nodes taken, and behind them the candidates, all sorted by probability: no path is more likely than its beginning.
    node_token = np.empty(max_nodes, np.int32)
    node_parent = np.empty(max_nodes, np.int32)
    node_prob = np.empty(max_nodes, np.float32)
    depth = np.zeros(max_nodes + 1, np.int32)
    taken = 0
    size = 0
    while max_nodes:
        # Open the row taken last; row 0 is the root.
        path = node_prob[taken - 1] if taken else np.float32(1.0)
        least = node_prob[max_nodes - 1] if size == max_nodes else LEAST_PROBABILITY
        if depth[taken] < max_depth and path > WORTH_OPENING * least:
            if taken:
                enter(pair, work, taken)
            found = gather(pair, work, taken, doubts, tokens, probs, float32(least / path))
            limit = fan if taken else root_fan
            for index in range(min(found, limit)):
                best = index
                if limit < found:
                    best = int64(np.argmax(probs[:found]))
                prob, token = path * probs[best], tokens[best]
                if limit < found:
                    probs[best] = -1.0
                if prob <= least:
                    continue
                at = size if size < max_nodes else max_nodes - 1
                while at > taken and node_prob[at - 1] < prob:
                    node_prob[at] = node_prob[at - 1]
                    node_token[at] = node_token[at - 1]
                    node_parent[at] = node_parent[at - 1]
                    at -= 1
                node_prob[at] = prob
                node_token[at] = token
                node_parent[at] = taken - 1
                if size < max_nodes:
                    size += 1
                if size == max_nodes:
                    least = max(least, node_prob[max_nodes - 1])
        # In a large trie most time is spent waiting for memory, so ask early for what the next candidates need.
        if taken < size:
            look_ahead(pair.shared, work, 1, node_parent[taken] + 1, node_token[taken], True)
        if taken + 1 < size:
            look_ahead(pair.shared, work, 1, node_parent[taken + 1] + 1, node_token[taken + 1], False)
        if taken == size:
            break
        taken += 1
        if taken == max_nodes:
            break
        parent = node_parent[taken - 1] + 1
        depth[taken] = depth[parent] + 1
        store32(work.tokens, taken, node_token[taken - 1])
        store32(work.parents, taken, int32(parent))
    return node_token[:taken], node_parent[:taken], node_prob[:taken]
