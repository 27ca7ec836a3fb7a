"""How a trie lies in memory: four arrays, no Python object per node.

nodes   [capacity, 8] int32, one row of 32 bytes per node. A node stands for a string of 1 .. branch_length tokens that occurs
        in the text; row 0 is "no node". A string that occurred once has a row only for its shortest prefix that no other string
        shares: the rest (its *tail*) is read from the text.
heads   [capacity] int32, buckets of the hash from (parent, token) to the child; rows of a bucket are linked.
ring    [ring_len] int32, the text itself, oldest tokens overwritten first. A value above 0 is a token + 1; 0 is unwritten;
        below 0 it opens a *run* (a piece of one sequence): -(row of the root) and, next to it, -1 - (number of tokens repeated
        from the sequence's previous run).
meta    [8] int64 counters.

Every position of the text starts a *suffix*, the string of at most branch_length tokens from there on. A node's `START` is the
ring slot of the latest suffix that goes through it, so a node is as old as its last use, and forgetting the oldest position
of the ring removes exactly the least recently used nodes: those of its suffix that no later suffix has touched.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.decoding.tree import IntArray

LongArray = npt.NDArray[np.int64]

# Columns of a node. Children of a node are a list, the one seen last in front.
PARENT, TOKEN, COUNT, START, BUCKET_NEXT, FIRST_CHILD, NEXT, PREVIOUS = range(8)
# COUNT of a node seen once whose continuation is read from the text.
TAIL = 0
# Entries of meta. HEAD and OLDEST are positions counted from the beginning, slots are positions modulo ring_len.
FREE, FRESH, HEAD, OLDEST, OLDEST_ROOT, NUM_NODES, EPOCH, BRANCH_LENGTH = range(8)

NODE_BYTES = 8 * 4
# Text slots per node: real text needs 2 to 4 nodes per token, so nodes run out first.
RING_SHARE = 0.6


class TrieArrays(NamedTuple):
    nodes: IntArray
    heads: IntArray
    ring: IntArray
    meta: LongArray

    @property
    def num_bytes(self) -> int:
        return self.nodes.nbytes + self.heads.nbytes + self.ring.nbytes + self.meta.nbytes


class TrieView(NamedTuple):
    """Addresses of the arrays and their sizes, as the kernels want them. Good for as long as the arrays live."""

    nodes: int
    heads: int
    ring: int
    meta: int
    num_nodes: int
    ring_len: int
    branch_length: int


def view_of(arrays: TrieArrays) -> TrieView:
    return TrieView(
        *(array.ctypes.data for array in arrays),
        len(arrays.nodes),
        len(arrays.ring),
        int(arrays.meta[BRANCH_LENGTH]),
    )


def empty_arrays(num_nodes: int, branch_length: int) -> TrieArrays:
    """Room for num_nodes nodes. Memory is taken from the system only as it is used."""
    meta = np.zeros(8, np.int64)
    meta[FRESH] = 1
    meta[BRANCH_LENGTH] = branch_length
    # Two nodes share a cache line, and none lies across two.
    memory = np.zeros(num_nodes * 8 + 16, np.int32)
    begin = -memory.ctypes.data % 64 // 4
    return TrieArrays(
        memory[begin : begin + num_nodes * 8].reshape(num_nodes, 8),
        np.zeros(num_nodes, np.int32),
        np.zeros(max(int(num_nodes * RING_SHARE), 4 * branch_length + 8), np.int32),
        meta,
    )


def nodes_within(max_bytes: int) -> int:
    """How many nodes a trie of max_bytes can hold."""
    return int((max_bytes - 256) // (NODE_BYTES + 4 + 4 * RING_SHARE))
