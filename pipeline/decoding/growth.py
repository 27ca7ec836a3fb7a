"""Grows one draft tree from the proposals of all draft sources.

Proposals (trees of the sources) are merged, so that shared prefixes exist once. A `ContinuationTable` may continue any
path. The tree grows best first: each step takes the candidate whose path is most likely to be accepted. A *channel* is
a proposing source or an order of the table. A candidate's probability given its parent mixes those of its channels (see
`mixing`), with one set of weights for each number of orders that have an entry after the parent.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from pipeline.decoding.compiled import compiled, inlined, int64
from pipeline.decoding.continuations import ContinuationTable, extend_key, last_tokens, slot_of
from pipeline.decoding.first_rows import FirstRows
from pipeline.decoding.mixing import OTHERS, learn, mixed_probability
from pipeline.decoding.tree import BoolArray, FloatArray, IntArray


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


class Grown(NamedTuple):
    """A grown tree.

    token_ids, parents, probabilities: [n] nodes in the order of growth. channel_probs: [n, channels] each channel's
    probability of a node given its parent; 0 if the channel has no data after the parent, `OTHERS` if it lists only
    other tokens there. num_orders: [n] number of orders with an entry after a node's parent. places: [total] index in
    the tree of each proposed node, -1 if it was not taken. num_fixed: number of fixed nodes, which come first.
    """

    token_ids: IntArray
    parents: IntArray
    probabilities: FloatArray
    channel_probs: FloatArray
    num_orders: IntArray
    places: IntArray
    num_fixed: int


@compiled
def learn_from_step(weights: FloatArray, grown: Grown, verified: IntArray, accepted: BoolArray, rate: float) -> None:
    """Update weights [sets, channels + 1, 3] with every verified node whose parent was accepted. verified: [n] negative
    where a grown node was not verified. accepted: [n] whether a grown node was accepted."""
    for node in range(len(grown.parents)):
        if verified[node] >= 0 and (grown.parents[node] < 0 or accepted[grown.parents[node]]):
            learn(weights[grown.num_orders[node]], grown.channel_probs[node], accepted[node], rate)


@compiled
def grow(
    context: IntArray,
    proposals: Proposals,
    table: ContinuationTable,
    table_key: np.uint64,
    first_rows: FirstRows,
    table_channel: int,
    weights: FloatArray,
    max_nodes: int,
    max_depth: int,
) -> Grown:
    """Grow the tree. context: [len] tokens up to the root. table_key: `namespace_key` of the request. table_channel:
    channel of the table's first order; the channel of the first rows follows that of the last order. weights:
    [orders + 1, channels + 1, 3] see `mixed_probability`."""
    total = len(proposals.token_ids)
    orders, capacity, width = table.ids.shape
    num_channels = weights.shape[1] - 1
    room = 1 + total + (max_nodes + 1) * (orders * width + first_rows.ids.shape[1])
    # Index 0 is the root; children hang on linked lists.
    token = np.empty(room, np.int32)
    parent = np.empty(room, np.int32)
    depth = np.zeros(room, np.int32)
    first_child = np.full(room, -1, np.int32)
    next_sibling = np.full(room, -1, np.int32)
    path_probability = np.zeros(room, np.float32)
    channel_probs = np.zeros((room, num_channels), np.float32)
    fixed = np.zeros(room, np.bool_)
    rank = np.full(room, -1, np.int32)
    num_orders = np.zeros(room, np.int32)
    path_probability[0] = 1.0
    parent[0] = -1
    size = 1

    merged = np.empty(total, np.int32)
    for node in range(total):
        above = 0 if proposals.parents[node] < 0 else merged[proposals.parents[node]]
        child = _child_of(token, parent, depth, first_child, next_sibling, size, above, proposals.token_ids[node])
        size = max(size, child + 1)
        merged[node] = child
        channel_probs[child, proposals.channels[node]] = max(
            channel_probs[child, proposals.channels[node]], proposals.conditionals[node]
        )
        fixed[child] |= proposals.fixed[node]

    taken = np.empty(max_nodes, np.int32)
    # Candidates: minus the path probability, and the node.
    heap = [(np.float32(-1.0), 0)]
    heap.clear()
    num_taken = 0
    last = np.empty(orders, np.int32)
    current = 0
    next_fixed = 1
    num_fixed = 0
    while True:
        # Expand the node taken last: collect its candidate children and estimate their probabilities.
        may_go_on = depth[current] < max_depth
        if may_go_on or fixed[current]:
            known = last_tokens(token, parent, current, 0, context, last)
            key = table_key
            num_known = 0
            for order in range(known):
                key = extend_key(key, last[order])
                slot = slot_of(key, capacity)
                if table.keys[order, slot] != key:
                    break
                num_known += 1
                for k in range(width):
                    candidate = table.ids[order, slot, k]
                    if candidate < 0:
                        break
                    child = _child_of(token, parent, depth, first_child, next_sibling, size, current, candidate)
                    size = max(size, child + 1)
                    channel_probs[child, table_channel + order] = table.probs[order, slot, k]
            if known and last[0] < len(first_rows.ids):
                for k in range(first_rows.ids.shape[1]):
                    candidate = first_rows.ids[last[0], k]
                    if candidate < 0:
                        break
                    child = _child_of(token, parent, depth, first_child, next_sibling, size, current, candidate)
                    size = max(size, child + 1)
                    channel_probs[child, table_channel + orders] = first_rows.probs[last[0], k]
            _rate(
                first_child[current],
                next_sibling,
                channel_probs,
                weights[num_known],
                path_probability[current],
                path_probability,
            )
            child = first_child[current]
            while child >= 0:
                num_orders[child] = num_known
                if may_go_on and not fixed[child]:
                    heappush(heap, (-path_probability[child], int64(child)))
                child = next_sibling[child]
        if num_taken >= max_nodes:
            break
        while next_fixed < size and not fixed[next_fixed]:
            next_fixed += 1
        if next_fixed < size and next_fixed <= total:
            current = next_fixed
            next_fixed += 1
            num_fixed += 1
        elif heap:
            current = heappop(heap)[1]
        else:
            break
        rank[current] = num_taken
        taken[num_taken] = current
        num_taken += 1

    chosen = taken[:num_taken]
    out_parents = np.empty(num_taken, np.int32)
    for index in range(num_taken):
        above = parent[chosen[index]]
        out_parents[index] = -1 if above == 0 else rank[above]
    places = np.empty(total, np.int32)
    for node in range(total):
        places[node] = rank[merged[node]]
    return Grown(
        token[chosen],
        out_parents,
        path_probability[chosen],
        channel_probs[chosen],
        num_orders[chosen],
        places,
        num_fixed,
    )


@inlined
def _child_of(
    token: IntArray,
    parent: IntArray,
    depth: IntArray,
    first_child: IntArray,
    next_sibling: IntArray,
    size: int,
    above: int,
    wanted: int,
) -> int:
    """The child of node `above` with token `wanted`. If there is none, creates it with index `size`."""
    found = first_child[above]
    while found >= 0 and token[found] != wanted:
        found = next_sibling[found]
    if found < 0:
        found = size
        token[found] = wanted
        parent[found] = above
        depth[found] = depth[above] + 1
        next_sibling[found] = first_child[above]
        first_child[above] = found
    return found


@inlined
def _rate(
    first: int,
    next_sibling: IntArray,
    channel_probs: FloatArray,
    weights: FloatArray,
    above: float,
    probability: FloatArray,
) -> None:
    """Estimate the path probability of each sibling from `first` on. above: path probability of their parent."""
    for channel in range(channel_probs.shape[1]):
        has_data = False
        each = first
        while each >= 0 and not has_data:
            has_data = channel_probs[each, channel] > 0
            each = next_sibling[each]
        each = first
        while has_data and each >= 0:
            if channel_probs[each, channel] == 0:
                channel_probs[each, channel] = OTHERS
            each = next_sibling[each]
    mass = 0.0
    each = first
    while each >= 0:
        probability[each] = mixed_probability(channel_probs[each], weights)
        mass += probability[each]
        each = next_sibling[each]
    scale = above / max(mass, 1.0)
    each = first
    while each >= 0:
        probability[each] *= scale
        each = next_sibling[each]
