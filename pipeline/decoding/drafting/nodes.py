"""Nodes of a draft tree under growth, with children as linked lists."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.decoding.compiled import inlined, subkernel
from pipeline.decoding.drafting.proposals import Proposals
from pipeline.decoding.tree import BoolArray, FloatArray, IntArray


class Nodes(NamedTuple):
    """Nodes under growth. Node 0 is the root. The others are those of the proposals and every candidate that a table
    listed.

    token, parent, depth: of a node. first_child, next_sibling: children as linked lists, -1 at the end.
    path_probability: product of the mixed probabilities from the root. channel_probs, num_orders, noise: see
    `growth.Grown`.
    fixed: see `Proposals`. rank: position in the grown tree, of taken nodes; -1 for the root. size: [1] number of
    nodes.
    """

    token: IntArray
    parent: IntArray
    depth: IntArray
    first_child: IntArray
    next_sibling: IntArray
    path_probability: FloatArray
    channel_probs: FloatArray
    num_orders: IntArray
    noise: FloatArray
    fixed: BoolArray
    rank: IntArray
    size: IntArray


@inlined
def new_nodes(room: int, num_channels: int) -> Nodes:
    """Arrays for `room` nodes, with the root."""
    nodes = Nodes(
        np.empty(room, np.int32),
        np.empty(room, np.int32),
        np.empty(room, np.int32),
        np.empty(room, np.int32),
        np.empty(room, np.int32),
        np.empty(room, np.float32),
        np.empty((room, num_channels), np.float32),
        np.empty(room, np.int32),
        np.empty(room, np.float32),
        np.empty(room, np.bool_),
        np.empty(room, np.int32),
        np.ones(1, np.int32),
    )
    nodes.first_child[0] = nodes.rank[0] = -1
    nodes.depth[0], nodes.fixed[0] = 0, False
    nodes.path_probability[0] = 1.0
    return nodes


@subkernel
def child_of(nodes: Nodes, above: int, token: int) -> int:
    """The child of node `above` with a token, added if there is none."""
    child: int = nodes.first_child[above]
    while child >= 0 and nodes.token[child] != token:
        child = nodes.next_sibling[child]
    if child < 0:
        child = nodes.size[0]
        nodes.size[0] += 1
        nodes.token[child] = token
        nodes.parent[child] = above
        nodes.depth[child] = nodes.depth[above] + 1
        nodes.next_sibling[child] = nodes.first_child[above]
        nodes.first_child[above] = child
        nodes.first_child[child] = -1
        nodes.fixed[child], nodes.noise[child] = False, 0.0
        for channel in range(nodes.channel_probs.shape[1]):
            nodes.channel_probs[child, channel] = 0.0
    return child


@subkernel
def children_of(nodes: Nodes, above: int, children: IntArray) -> int:
    """Write the children of a node into `children`. Returns their number."""
    num = 0
    child = nodes.first_child[above]
    while child >= 0:
        children[num] = child
        num += 1
        child = nodes.next_sibling[child]
    return num


@inlined
def merge(nodes: Nodes, proposals: Proposals) -> None:
    """Add the proposed nodes, equal paths once."""
    merged = np.empty(len(proposals.token_ids), np.int32)
    for index in range(len(merged)):
        above = 0 if proposals.parents[index] < 0 else merged[proposals.parents[index]]
        node = child_of(nodes, above, proposals.token_ids[index])
        channel = proposals.channels[index]
        nodes.channel_probs[node, channel] = max(nodes.channel_probs[node, channel], proposals.conditionals[index])
        nodes.fixed[node] |= proposals.fixed[index]
        merged[index] = node
