"""Grows one draft tree from the proposals of all draft sources.

Proposals (trees of the sources) are merged, so that shared prefixes exist once. A `ContinuationTable` may continue any
path. The tree grows best first: each step takes the candidate whose path is most likely to be accepted. A *channel* is
a proposing source, an order of the table, the first rows, or one of the two kinds of `recent_rows`. A candidate's
probability given its parent mixes those of its channels (see `mixing`), with one set of weights for each number of
orders that have an entry after the parent.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from pipeline.decoding.compiled import Plain, compiled, inlined, int64, subkernel
from pipeline.decoding.drafting.calibration import Calibration, corrected
from pipeline.decoding.drafting.continuations import ContinuationTable, extend_key, last_tokens, slot_of
from pipeline.decoding.drafting.first_rows import FirstRows
from pipeline.decoding.drafting.mixing import OTHERS, Mix, mix_logits, probability_of
from pipeline.decoding.drafting.nodes import Nodes, child_of, children_of
from pipeline.decoding.drafting.recent_rows import EVERY, RecentRows
from pipeline.decoding.noise import NoiseKey, token_noise
from pipeline.decoding.tree import FloatArray, IntArray

# Siblings above this probability together have 1 at most. Smaller estimates are many and too high.
LEAST_COUNTED = 0.05


class Grown(NamedTuple):
    """A grown tree.

    token_ids, parents, estimates: [n] nodes in the order of growth, with their path probabilities. probabilities: [n]
    the same after calibration. channels: [n] the channel that a node is credited to: of those that name nodes, the one
    with the highest probability. sources: [n] the source of this channel. channel_probs: [n, channels] each
    channel's probability of a node given its parent; 0 if the channel has no data after the parent, `OTHERS` if it
    lists only other tokens there. num_orders: [n] number of orders with an entry after a node's parent. noise: [n] see
    `noise.token_noise`. num_fixed: number of fixed nodes, which come first.
    """

    token_ids: IntArray
    parents: IntArray
    estimates: FloatArray
    probabilities: FloatArray
    channels: IntArray
    sources: IntArray
    channel_probs: FloatArray
    num_orders: IntArray
    noise: FloatArray
    num_fixed: int


@compiled
def grow(
    context: IntArray,
    node_arrays: Plain,
    table_arrays: Plain,
    table_key: np.uint64,
    first_arrays: Plain,
    recent_arrays: Plain,
    table_channel: int,
    mix_arrays: Plain,
    calibration_arrays: Plain,
    channel_sources: IntArray,
    noise_parts: Plain,
    max_nodes: int,
    max_depth: int,
    least_probability: float,
    vocab_size: int,
) -> Plain:
    """Grow the tree. Returns the fields of `Grown`.

    context: [len] tokens up to the root. node_arrays: `Nodes` with the proposals, and room for the candidates that the
    table and the first rows list after max_nodes nodes. table_key: `namespace_key` of the request. recent_arrays: of
    the step before. table_channel: channel of the table's first order; after its orders come the first rows and the two
    kinds of recent rows. channel_sources: index of the source of each channel that names nodes. noise_parts: of the
    request. max_nodes, max_depth, least_probability: see `DraftBudget`. vocab_size: a row ends before a token outside
    the vocabulary, which only a damaged file of rows has."""
    nodes, table, mix = Nodes(*node_arrays), ContinuationTable(*table_arrays), Mix(*mix_arrays)
    first_rows, recent, noise = FirstRows(*first_arrays), RecentRows(*recent_arrays), NoiseKey(*noise_parts)
    records, end_of_proposals = nodes.records, nodes.size[0]
    orders, _, width = table.ids.shape
    last = np.empty(orders, np.int32)
    taken = np.empty(max_nodes, np.int32)
    children = np.empty(end_of_proposals + orders * width + first_rows.ids.shape[1], np.int32)
    rows = np.empty((len(mix.output) + 2, len(children)), np.float32)
    # Candidates: minus the path probability, and the node.
    heap = [(np.float32(-1.0), 0)]
    heap.clear()
    current = next_fixed = num_taken = num_fixed = 0
    while True:
        may_go_on = records[current].depth < max_depth
        if may_go_on or records[current].fixed:
            known = last_tokens(records.token, records.parent, current, 0, context, last)
            arguments = table, table_key, first_rows, table_channel, last[:known], vocab_size
            num_orders = _name_continuations(nodes, current, *arguments)
            siblings = children[: children_of(nodes, current, children)]
            if len(siblings):
                _rate_by_recent(nodes, siblings, recent, table_channel + orders + 1)
                if noise.temperature > 0:
                    _find_noise(nodes, siblings, noise, len(context))
                _rate_siblings(nodes, siblings, num_orders, mix, rows)
            for child in siblings:
                if may_go_on and not records[child].fixed:
                    heappush(heap, (-records[child].path_probability, int64(child)))
        next_fixed += 1
        while next_fixed < end_of_proposals and not records[next_fixed].fixed:
            next_fixed += 1
        if next_fixed < end_of_proposals:
            current = next_fixed
            num_fixed += 1
        elif heap and -heap[0][0] >= least_probability:
            current = heappop(heap)[1]
        else:
            break
        records[current].rank = num_taken
        taken[num_taken] = current
        num_taken += 1
        if num_taken == max_nodes:
            break
    return _grown(nodes, taken[:num_taken], num_fixed, Calibration(*calibration_arrays), channel_sources)


@subkernel
def _name_continuations(
    nodes: Nodes,
    above: int,
    table: ContinuationTable,
    key: np.uint64,
    first_rows: FirstRows,
    channel: int,
    last: IntArray,
    vocab_size: int,
) -> int:
    """Add the candidates of the table and of the first rows below a node. channel: of the table's first order. last:
    [known] tokens that end at the node, latest first. Returns the number of orders with an entry."""
    num_orders = 0
    for order in range(len(last)):
        key = extend_key(key, last[order])
        slot = slot_of(key, table.keys.shape[1])
        if table.keys[order, slot] != key:
            break
        _name_row(nodes, above, table.ids[order, slot], table.probs[order, slot], channel + order, vocab_size)
        num_orders += 1
    if len(last) and last[0] < len(first_rows.ids):
        ids, probs = first_rows.ids[last[0]], first_rows.probs[last[0]]
        _name_row(nodes, above, ids, probs, channel + table.keys.shape[0], vocab_size)
    return num_orders


@subkernel
def _name_row(nodes: Nodes, above: int, ids: IntArray, probs: FloatArray, channel: int, vocab_size: int) -> None:
    """Add candidates below a node. ids: [k], -1 after the last one. probs: [k]."""
    for rank in range(len(ids)):
        if not 0 <= ids[rank] < vocab_size:
            break
        nodes.channel_probs[child_of(nodes, above, ids[rank]), channel] = probs[rank]


@subkernel
def _rate_by_recent(nodes: Nodes, siblings: IntArray, recent: RecentRows, channel: int) -> None:
    """For each sibling, set its highest probability in the recent rows for its depth. channel: of the row that chose
    the root; channel + 1 is that of the rows after rejected nodes."""
    for row in range(len(recent.depths)):
        if recent.depths[row] not in (EVERY, int64(nodes.records[siblings[0]].depth)):
            continue
        row_channel = channel + int64(recent.depths[row] != EVERY)
        for child in siblings:
            for rank in range(recent.ids.shape[1]):
                if recent.ids[row, rank] == nodes.records[child].token:
                    nodes.channel_probs[child, row_channel] = max(
                        nodes.channel_probs[child, row_channel], recent.probs[row, rank]
                    )


@subkernel
def _find_noise(nodes: Nodes, siblings: IntArray, key: NoiseKey, context_len: int) -> None:
    """Set the noise of siblings. context_len: position of the root's children."""
    for child in siblings:
        node = nodes.records[child]
        nodes.noise[child] = token_noise(key, context_len + node.depth - 1, node.token)


@subkernel
def _rate_siblings(nodes: Nodes, siblings: IntArray, num_orders: int, mix: Mix, rows: FloatArray) -> None:
    """Estimate the path probabilities of siblings. num_orders: orders with an entry after their parent. rows: buffer of
    `mix_logits`."""
    for channel in range(nodes.channel_probs.shape[1]):
        has_data = False
        for child in siblings:
            has_data |= nodes.channel_probs[child, channel] > 0
        for child in siblings:
            if has_data and nodes.channel_probs[child, channel] == 0:
                nodes.channel_probs[child, channel] = OTHERS
    mix_logits(mix, num_orders, siblings, nodes.channel_probs, nodes.noise, rows)
    records, mass = nodes.records, 0.0
    for index, child in enumerate(siblings):
        records[child].num_orders = num_orders
        records[child].path_probability = probability_of(rows[-1, index])
        if records[child].path_probability > LEAST_COUNTED:
            mass += records[child].path_probability
    scale = records[records[siblings[0]].parent].path_probability / max(mass, 1.0)
    for child in siblings:
        records[child].path_probability *= scale


@inlined
def _grown(nodes: Nodes, taken: IntArray, num_fixed: int, calibration: Calibration, channel_sources: IntArray) -> Plain:
    """The fields of the tree of the nodes that were taken, in this order."""
    records = nodes.records
    parents, estimates = records.rank[records.parent[taken]], records.path_probability[taken]
    channels = np.empty(len(taken), np.int32)
    for index in range(len(taken)):
        channels[index] = np.argmax(nodes.channel_probs[taken[index], : len(channel_sources)])
    return (
        records.token[taken],
        parents,
        estimates,
        corrected(calibration, estimates, channels, parents),
        channels,
        channel_sources[channels],
        nodes.channel_probs[taken],
        records.num_orders[taken],
        nodes.noise[taken],
        num_fixed,
    )
