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
from pipeline.decoding.drafting.nodes import Nodes, child_of, children_of, merge, new_nodes
from pipeline.decoding.drafting.proposals import Proposals
from pipeline.decoding.drafting.recent_rows import EVERY, RecentRows
from pipeline.decoding.noise import NoiseKey, token_noise
from pipeline.decoding.sources.base import DraftBudget
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


def grow(
    context: IntArray,
    proposals: Proposals,
    table: ContinuationTable,
    table_key: np.uint64,
    first_rows: FirstRows,
    recent: RecentRows,
    table_channel: int,
    mix: Mix,
    calibration: Calibration,
    channel_sources: IntArray,
    noise: NoiseKey,
    budget: DraftBudget,
    vocab_size: int,
) -> Grown:
    """Grow the tree. context: [len] tokens up to the root. table_key: `namespace_key` of the request. recent: of the
    step before. table_channel: channel of the table's first order; after its orders come the first rows and the two
    kinds of recent rows. channel_sources: index of the source of each channel that names nodes. noise: of the request.
    Raises ValueError if the table or the first rows name a token outside the vocabulary."""
    return Grown(
        *_grow(
            context,
            tuple(proposals),
            tuple(table),
            table_key,
            tuple(first_rows),
            tuple(recent),
            table_channel,
            tuple(mix),
            (calibration.promised, calibration.accepted),
            channel_sources,
            tuple(noise),
            budget.max_nodes,
            budget.max_depth,
            np.float32(budget.least_probability),
            vocab_size,
        )
    )


@compiled
def _grow(
    context: IntArray,
    proposal_arrays: Plain,
    table_arrays: Plain,
    table_key: np.uint64,
    first_arrays: Plain,
    recent_arrays: Plain,
    table_channel: int,
    mix_arrays: Plain,
    cells: Plain,
    channel_sources: IntArray,
    noise_parts: Plain,
    max_nodes: int,
    max_depth: int,
    least_probability: np.float32,
    vocab_size: int,
) -> Plain:
    proposals, table, mix = Proposals(*proposal_arrays), ContinuationTable(*table_arrays), Mix(*mix_arrays)
    first_rows, recent, noise = FirstRows(*first_arrays), RecentRows(*recent_arrays), NoiseKey(*noise_parts)
    orders, _, width = table.ids.shape
    num_proposed, most_named = len(proposals.token_ids), orders * width + first_rows.ids.shape[1]
    nodes = new_nodes(1 + num_proposed + max_nodes * most_named, mix.weights.shape[1] - 1)
    merge(nodes, proposals)
    end_of_proposals = nodes.size[0]
    last = np.empty(orders, np.int32)
    taken = np.empty(max_nodes, np.int32)
    children = np.empty(num_proposed + most_named, np.int32)
    rows = np.empty((len(mix.output) + 2, len(children)), np.float32)
    # Candidates: minus the path probability, and the node.
    heap = [(np.float32(-1.0), 0)]
    heap.clear()
    current = next_fixed = num_taken = num_fixed = 0
    while True:
        may_go_on = nodes.depth[current] < max_depth
        if may_go_on or nodes.fixed[current]:
            known = last_tokens(nodes.token, nodes.parent, current, 0, context, last)
            num_orders = _name_continuations(nodes, current, table, table_key, table_channel, last[:known])
            _name_first_row(nodes, current, first_rows, table_channel + orders, last[:known])
            siblings = children[: children_of(nodes, current, children)]
            if len(siblings):
                _rate_by_recent(nodes, siblings, recent, table_channel + orders + 1)
                if noise.temperature > 0:
                    _find_noise(nodes, siblings, noise, len(context))
                _rate_siblings(nodes, siblings, num_orders, mix, rows)
            for child in siblings:
                if may_go_on and not nodes.fixed[child]:
                    heappush(heap, (-nodes.path_probability[child], int64(child)))
        next_fixed += 1
        while next_fixed < end_of_proposals and not nodes.fixed[next_fixed]:
            next_fixed += 1
        if next_fixed < end_of_proposals:
            current = next_fixed
            num_fixed += 1
        elif heap and -heap[0][0] >= least_probability:
            current = heappop(heap)[1]
        else:
            break
        nodes.rank[current] = num_taken
        taken[num_taken] = current
        num_taken += 1
        if num_taken == max_nodes:
            break
    return _grown(nodes, taken[:num_taken], num_fixed, cells, channel_sources, vocab_size)


@subkernel
def _name_continuations(
    nodes: Nodes, above: int, table: ContinuationTable, key: np.uint64, channel: int, last: IntArray
) -> int:
    """Add the table's candidates below a node. last: [known] tokens that end at the node, latest first. Returns the
    number of orders with an entry."""
    for order in range(len(last)):
        key = extend_key(key, last[order])
        slot = slot_of(key, table.keys.shape[1])
        if table.keys[order, slot] != key:
            return order
        _name_row(nodes, above, table.ids[order, slot], table.probs[order, slot], channel + order)
    return len(last)


@subkernel
def _name_first_row(nodes: Nodes, above: int, first_rows: FirstRows, channel: int, last: IntArray) -> None:
    """Add the candidates of the first row of a node's token."""
    if len(last) and last[0] < len(first_rows.ids):
        _name_row(nodes, above, first_rows.ids[last[0]], first_rows.probs[last[0]], channel)


@subkernel
def _name_row(nodes: Nodes, above: int, ids: IntArray, probs: FloatArray, channel: int) -> None:
    """Add candidates below a node. ids: [k], -1 after the last one. probs: [k]."""
    for rank in range(len(ids)):
        if ids[rank] < 0:
            break
        nodes.channel_probs[child_of(nodes, above, ids[rank]), channel] = probs[rank]


@subkernel
def _rate_by_recent(nodes: Nodes, siblings: IntArray, recent: RecentRows, channel: int) -> None:
    """For each sibling, set its highest probability in the recent rows for its depth. channel: of the row that chose
    the root; channel + 1 is that of the rows after rejected nodes."""
    for row in range(len(recent.depths)):
        if recent.depths[row] not in (EVERY, int64(nodes.depth[siblings[0]])):
            continue
        row_channel = channel + int64(recent.depths[row] != EVERY)
        for child in siblings:
            for rank in range(recent.ids.shape[1]):
                if recent.ids[row, rank] == nodes.token[child]:
                    nodes.channel_probs[child, row_channel] = max(
                        nodes.channel_probs[child, row_channel], recent.probs[row, rank]
                    )


@subkernel
def _find_noise(nodes: Nodes, siblings: IntArray, key: NoiseKey, context_len: int) -> None:
    """Set the noise of siblings. context_len: position of the root's children."""
    for child in siblings:
        nodes.noise[child] = token_noise(key, context_len + nodes.depth[child] - 1, nodes.token[child])


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
    mass = 0.0
    for index, child in enumerate(siblings):
        nodes.num_orders[child] = num_orders
        nodes.path_probability[child] = probability_of(rows[-1, index])
        if nodes.path_probability[child] > LEAST_COUNTED:
            mass += nodes.path_probability[child]
    scale = nodes.path_probability[nodes.parent[siblings[0]]] / max(mass, 1.0)
    for child in siblings:
        nodes.path_probability[child] *= scale


@inlined
def _grown(
    nodes: Nodes, taken: IntArray, num_fixed: int, cells: Plain, channel_sources: IntArray, vocab_size: int
) -> Plain:
    """The fields of the tree of the nodes that were taken, in this order."""
    parents, channels = np.empty(len(taken), np.int32), np.empty(len(taken), np.int32)
    for index in range(len(taken)):
        if not 0 <= nodes.token[taken[index]] < vocab_size:
            raise ValueError("the table of candidates holds a token outside the vocabulary")
        parents[index] = nodes.rank[nodes.parent[taken[index]]]
        channels[index] = np.argmax(nodes.channel_probs[taken[index], : len(channel_sources)])
    estimates = nodes.path_probability[taken]
    promised, accepted = cells
    return (
        nodes.token[taken],
        parents,
        estimates,
        corrected(promised, accepted, estimates, channels, parents),
        channels,
        channel_sources[channels],
        nodes.channel_probs[taken],
        nodes.num_orders[taken],
        nodes.noise[taken],
        num_fixed,
    )
