"""How a trie lies in memory: four arrays, no Python object per node.

nodes   [capacity, 8] int32, one row of 32 bytes per node. A node stands for a string of 1 .. branch_length tokens
        that occurs in the text; row 0 is "no node". A string that occurred once has a row only for its shortest prefix
        that no other string shares: the rest (its *tail*) is read from the text.
heads   [2 * capacity] int32, buckets of the hash from (parent, token) to the child; rows of a bucket are linked.
ring    [ring_len] int32, the text itself, oldest tokens overwritten first. A value above 0 is a token + 1; 0 is
        unwritten; below 0 it opens a *run* (a piece of one sequence): -(row of the root) and, next to it, -1 - (number
        of tokens repeated from the sequence's previous run).
meta    [8] int64 counters.

Every position of the text starts a *suffix*, the string of at most branch_length tokens from there on. A node's
`START` is the ring slot of the latest suffix that goes through it, so a node is as old as its last use, and
forgetting the oldest position of the ring removes exactly the least recently used nodes: those of its suffix that no
later suffix has touched.
"""

from __future__ import annotations

import mmap
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.decoding.compiled import compiled
from pipeline.decoding.tree import IntArray

LongArray = npt.NDArray[np.int64]

# Columns of a node. Children of a node are a list, the one seen last in front.
PARENT, TOKEN, COUNT, START, BUCKET_NEXT, FIRST_CHILD, NEXT, PREVIOUS = range(8)
# COUNT of a node seen once whose continuation is read from the text.
TAIL = 0
# Entries of meta. HEAD and OLDEST are positions counted from the beginning, slots are positions modulo ring_len.
NUM_COUNTERS = 8
FREE, FRESH, HEAD, OLDEST, OLDEST_ROOT, NUM_NODES, EPOCH, BRANCH_LENGTH = range(NUM_COUNTERS)

NODE_BYTES = 8 * 4
# Most strings that are looked for are unknown; an empty bucket says so without a look at any node.
BUCKETS_PER_NODE = 2
HUGE_BYTES = 4 << 20
# Text slots per node: real text needs 2 to 4 nodes per token, so nodes run out first.
RING_SHARE = 0.6


class TrieArrays(NamedTuple):
    """The arrays that the module's text describes."""

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
    nodes, heads, ring, meta = (array.ctypes.data for array in arrays)
    return TrieView(nodes, heads, ring, meta, len(arrays.nodes), len(arrays.ring), int(arrays.meta[BRANCH_LENGTH]))


@compiled
def view_from(numbers: LongArray) -> TrieView:
    """The view whose fields were handed over in an array, which is faster than as a tuple."""
    return TrieView(numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], numbers[6])


def _zeros(length: int) -> IntArray:
    """[length] zeros that begin at a cache line (two nodes share one, none lies across two). Large ones in huge
    pages, where the system has them: looking up a node at random costs half as much."""
    num_bytes = 4 * length
    if num_bytes >= HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(memory, np.int32)
    spare = np.zeros(length + 16, np.int32)
    begin = -spare.ctypes.data % 64 // 4
    return spare[begin : begin + length]


def empty_arrays(num_nodes: int, branch_length: int, ring_len: int | None = None) -> TrieArrays:
    """Room for num_nodes nodes, and for as much text as they may need. Memory is taken from the system only as it
    is used."""
    meta = np.zeros(NUM_COUNTERS, np.int64)
    meta[FRESH] = 1
    meta[BRANCH_LENGTH] = branch_length
    return TrieArrays(
        _zeros(num_nodes * 8).reshape(num_nodes, 8),
        _zeros(BUCKETS_PER_NODE * num_nodes),
        _zeros(slots_for(num_nodes, branch_length) if ring_len is None else ring_len),
        meta,
    )


def slots_for(num_nodes: int, branch_length: int) -> int:
    """How much text goes with so many nodes."""
    return max(int(num_nodes * RING_SHARE), 4 * branch_length + 16)


def nodes_within(max_bytes: int) -> int:
    """How many nodes a trie of max_bytes can hold."""
    return int((max_bytes - 256) // (NODE_BYTES + 4 * BUCKETS_PER_NODE + 4 * RING_SHARE))


def bytes_for(num_nodes: int) -> int:
    """The max_bytes that hold so many nodes."""
    return int(num_nodes * (NODE_BYTES + 4 * BUCKETS_PER_NODE + 4 * RING_SHARE)) + 512
