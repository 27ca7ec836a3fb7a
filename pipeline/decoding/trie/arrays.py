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

import mmap
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
# oldest position belongs to. num_nodes: rows in use. unused: for the file format. num_buckets: buckets in use.
# num_unsplit: the largest power of two not above it, see `nodes.bucket_of`.
STATE = np.dtype(
    [
        (name, "<i8")
        for name in (
            *("free", "fresh", "head", "oldest", "oldest_root", "num_nodes", "unused", "branch_length"),
            *("num_buckets", "num_unsplit"),
        )
    ],
    align=True,
)
BUCKETS_PER_NODE = 2
HUGE_BYTES = 4 << 20
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


class TrieMemory:
    """Owns the memory of a trie, and extends it without a copy where the system can (mremap)."""

    def __init__(self, num_nodes: int, branch_length: int) -> None:
        num_buckets = BUCKETS_PER_NODE * num_nodes
        state = np.zeros(1, STATE)
        state["fresh"], state["branch_length"] = 1, branch_length
        state["num_buckets"], state["num_unsplit"] = num_buckets, 1 << (num_buckets.bit_length() - 1)
        self._maps = [_mapped(num_nodes * size) for size in BYTES_PER_NODE]
        self.arrays = self._arrays(records(state))
        # Touch all pages of the hash table now. Otherwise the first insertion would wait until the system has cleared
        # them.
        self.arrays.buckets[:] = 0

    def double(self) -> None:
        """Double the capacity. Earlier arrays no longer belong to the trie. `nodes.new_node` fills the new buckets, a
        few at a time."""
        state = self.arrays.state
        del self.arrays
        self._maps = [_doubled(memory) for memory in self._maps]
        self.arrays = self._arrays(state)

    def _arrays(self, state: Records) -> TrieArrays:
        for memory in self._maps:
            # Huge pages halve the time to find a random node.
            if len(memory) >= HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
                memory.madvise(mmap.MADV_HUGEPAGE)
        nodes = records(np.frombuffer(self._maps[0], NODE))
        buckets, bucket_next, text = (np.frombuffer(memory, np.int32) for memory in self._maps[1:])
        return TrieArrays(nodes, buckets, bucket_next, text, state)


def _mapped(num_bytes: int) -> mmap.mmap:
    """Memory of zeros. The system allocates pages at their first use."""
    return mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _doubled(memory: mmap.mmap) -> mmap.mmap:
    """Memory of twice the size that begins with the content of `memory` and continues with zeros."""
    try:
        memory.resize(2 * len(memory))
    except (BufferError, SystemError, ValueError):  # an array still refers to it, or the system has no mremap
        larger = _mapped(2 * len(memory))
        larger[: len(memory)] = memory[:]
        memory = larger
    return memory


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
