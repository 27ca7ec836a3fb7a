"""Nodes of a draft tree under growth, with children as linked lists."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pipeline.decoding.compiled import records, subkernel
from pipeline.decoding.tree import FloatArray, IntArray

# first_child, next_sibling: children as linked lists, -1 at the end. num_orders: see `growth.Grown`. rank: position in
# the grown tree, of taken nodes; -1 for the root. fixed: 1 for nodes of a window, which are taken first whatever their
# probability; their parents must be fixed too. path_probability: product of the mixed probabilities from the root.
NODE = np.dtype(
    [
        *((name, "<i4") for name in ("token", "parent", "depth", "first_child", "next_sibling")),
        *((name, "<i4") for name in ("num_orders", "rank", "fixed")),
        ("path_probability", "<f4"),
    ],
    align=True,
)
_ROOT = np.asarray((0, 0, 0, -1, -1, 0, -1, 0, 1.0), NODE)


class Nodes(NamedTuple):
    """Nodes under growth. Node 0 is the root. The others are those of the proposals and every candidate that a table
    listed.

    records: [room] see `NODE`. channel_probs: [room, channels], noise: [room] see `growth.Grown`. size: [1]
    number of nodes.
    """

    records: Any
    channel_probs: FloatArray
    noise: FloatArray
    size: IntArray


def new_nodes(room: int, num_channels: int) -> Nodes:
    """Memory for `room` nodes, with the root."""
    memory = np.empty(room, NODE)
    memory[0] = _ROOT
    return Nodes(
        records(memory),
        np.empty((room, num_channels), np.float32),
        np.empty(room, np.float32),
        np.ones(1, np.int32),
    )


@subkernel
def child_of(nodes: Nodes, above: int, token: int) -> int:
    """The child of node `above` with a token, added if there is none."""
    child: int = nodes.records[above].first_child
    while child >= 0 and nodes.records[child].token != token:
        child = nodes.records[child].next_sibling
    if child < 0:
        child = nodes.size[0]
        nodes.size[0] += 1
        node = nodes.records[child]
        node.token, node.parent, node.depth = token, above, nodes.records[above].depth + 1
        node.next_sibling, node.first_child, node.fixed = nodes.records[above].first_child, -1, 0
        nodes.records[above].first_child = child
        nodes.noise[child] = 0.0
        for channel in range(nodes.channel_probs.shape[1]):
            nodes.channel_probs[child, channel] = 0.0
    return child


@subkernel
def children_of(nodes: Nodes, above: int, children: IntArray) -> int:
    """Write the children of a node into `children`. Returns their number."""
    num = 0
    child = nodes.records[above].first_child
    while child >= 0:
        children[num] = child
        num += 1
        child = nodes.records[child].next_sibling
    return num
