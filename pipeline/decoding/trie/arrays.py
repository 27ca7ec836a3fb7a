"""The memory of a trie: numpy arrays with named fields, no Python object per node.

nodes        [capacity] records, see `NODE`. A node stands for the strings of one edge: all strings between its parent's
             depth (exclusive) and its own (inclusive). They occurred at the same positions, so they share one count.
             Only the first token of the edge is stored; the others are read from the text at `start`. Row 0 is
             unused and holds zeros.
buckets      [2 * capacity] a hash table from (parent, first token of the edge) to the row of the child.
bucket_next  [capacity] the next row of the same bucket, 0 at its end.
text         [capacity] the tokens, a ring buffer that overwrites the oldest. A value above 0 is a token + 1; 0 is
             unwritten; a negative pair is the header of a sequence: -(row of the root), then -1.
state        [1] counters, see `STATE`.

Every position of the text starts a *suffix*, the string of at most `branch_length` tokens from there on. `start` of a
node is the slot of the latest suffix on whose path it lies. So a node is as old as its last use, and forgetting the
oldest position of the text removes exactly the least recently used nodes.

    text      a b c x a b c y         branch_length 4
    nodes     "abc" (count 2) -+- "x..." (count 1)
                               +- "y..." (count 1)      likewise "bc", "c"; an edge of count 1 ends with the text
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pipeline.decoding.compiled import records, subkernel
from pipeline.decoding.tree import IntArray

Records = Any  # arrays of the data types below

# parent: 0 for a root, -1 for a free row. token: first of the edge. depth: tokens of the longest string of the node;
# `branch_length` where the edge ends with the text. start: slot where its latest occurrence begins. first_child, next,
# previous: list of siblings; in a free row `next` is the next free row, and `previous` of a first child is 0 or the
# note of `nodes.link`.
NODE = np.dtype(
    [(name, "<i4") for name in ("parent", "token", "depth", "count", "start", "first_child", "next", "previous")],
    align=True,
)
# free: first free row. fresh: first row that was never used. head, oldest: positions of the next token and of the
# oldest held, counted from the beginning (slot = position % capacity). oldest_root: root of the sequence that the
# oldest position belongs to. num_nodes: rows in use.
STATE = np.dtype(
    [(name, "<i8") for name in ("free", "fresh", "head", "oldest", "oldest_root", "num_nodes", "branch_length")],
    align=True,
)
BUCKETS_PER_NODE = 2
# Bytes per node in nodes, buckets, bucket_next and text. The text has one slot per node, because most tokens create at
# least one node.
BYTES_PER_NODE = (NODE.itemsize, 4 * BUCKETS_PER_NODE, 4, 4)


class TrieArrays(NamedTuple):
    """The arrays that the module's text describes. Kernels take them whole."""

    nodes: Records
    buckets: IntArray
    bucket_next: IntArray
    text: IntArray
    state: Records

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self)


def new_arrays(num_nodes: int, branch_length: int) -> TrieArrays:
    """The arrays of an empty trie. The system allocates memory when it is first written: nodes one by one, buckets and
    text here, so that no insertion waits for them."""
    state = np.zeros(1, STATE)
    state["fresh"], state["branch_length"] = 1, branch_length
    nodes = np.empty(num_nodes, NODE)
    nodes[0] = 0
    return TrieArrays(
        records(nodes),
        np.full(BUCKETS_PER_NODE * num_nodes, 0, np.int32),
        np.empty(num_nodes, np.int32),
        np.full(num_nodes, 0, np.int32),
        records(state),
    )


def nodes_within(max_bytes: int) -> int:
    """Number of nodes that a trie of max_bytes can hold."""
    return (max_bytes - STATE.itemsize) // sum(BYTES_PER_NODE)


def bytes_for(num_nodes: int) -> int:
    """The least max_bytes for num_nodes nodes."""
    return num_nodes * sum(BYTES_PER_NODE) + STATE.itemsize


@subkernel
def slot_of(arrays: TrieArrays, position: int) -> int:
    """The position modulo the length of the text. position: less than twice that length."""
    length = len(arrays.text)
    return position - length if position >= length else position
