"""Growing a draft tree best first from what two tries say, and learning from the tokens that came."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from pipeline.decoding.tree import FloatArray, IntArray
from pipeline.decoding.trie.estimate import MAX_CANDIDATES, enter, find_context, gather, learn_token, new_contexts, new_scratch
from pipeline.decoding.trie.layout import BRANCH_LENGTH, TrieArrays

# Paths less likely than this are not worth a node.
LEAST_PROBABILITY = 1e-5


@njit(cache=True)
def grow_tree(
    first: TrieArrays,
    second: TrieArrays,
    roots: Any,
    context: IntArray,
    strengths: FloatArray,
    max_nodes: int,
    max_depth: int,
    root_fan: int,
    fan: int,
) -> Any:
    """The most likely paths after context [len]: token_ids, parents, path probabilities, most likely first.

    roots: row of the root in each trie, 0 for none. root_fan, fan: how many children the root and other nodes may have.
    """
    orders = second.meta[BRANCH_LENGTH]
    contexts = new_contexts(max_nodes + 1, orders)
    scratch = new_scratch(orders)
    tokens = np.empty(MAX_CANDIDATES, np.int32)
    probs = np.empty(MAX_CANDIDATES, np.float32)
    find_context(first, roots[0], context, contexts, 0)
    find_context(second, roots[1], context, contexts, 1)
    # Nodes taken, and behind them the candidates, all sorted by probability: no path is more likely than its beginning.
    node_token = np.empty(max_nodes, np.int32)
    node_parent = np.empty(max_nodes, np.int32)
    node_prob = np.empty(max_nodes, np.float32)
    depth = np.zeros(max_nodes + 1, np.int32)
    taken = 0
    size = 0
    while True:
        # Open the row taken last; row 0 is the root.
        path = node_prob[taken - 1] if taken else 1.0
        least = node_prob[max_nodes - 1] if size == max_nodes else LEAST_PROBABILITY
        if depth[taken] < max_depth and path > least:
            if taken:
                enter(first, second, roots, contexts, taken, scratch.path)
            found = gather(first, second, contexts, taken, strengths, tokens, probs, scratch, least / path)
            limit = fan if taken else root_fan
            for index in range(min(found, limit)):
                if limit < found:
                    best = np.argmax(probs[:found])
                    prob, token = path * probs[best], tokens[best]
                    probs[best] = -1.0
                else:
                    prob, token = path * probs[index], tokens[index]
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
        if taken == size:
            break
        taken += 1
        parent = node_parent[taken - 1] + 1
        depth[taken] = depth[parent] + 1
        contexts.tokens[taken] = node_token[taken - 1]
        contexts.parents[taken] = parent
        if taken == max_nodes:
            break
    return node_token[:taken], node_parent[:taken], node_prob[:taken]


@njit(cache=True)
def learn_tokens(
    first: TrieArrays,
    second: TrieArrays,
    roots: Any,
    context: IntArray,
    tokens: IntArray,
    strengths: FloatArray,
    rate: float,
) -> None:
    """Learn from the tokens that followed context, before they are inserted anywhere."""
    orders = second.meta[BRANCH_LENGTH]
    contexts = new_contexts(len(tokens) + 1, orders)
    scratch = new_scratch(orders)
    find_context(first, roots[0], context, contexts, 0)
    find_context(second, roots[1], context, contexts, 1)
    for index in range(len(tokens)):
        learn_token(first, second, contexts, index, strengths, tokens[index], rate, scratch)
        contexts.tokens[index + 1] = tokens[index]
        contexts.parents[index + 1] = index
        enter(first, second, roots, contexts, index + 1, scratch.path)
