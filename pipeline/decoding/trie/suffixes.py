"""Finds the end nodes of a context's suffixes in two tries (0: the request's own, 1: the shared one), in compiled
loops.

Each context has a *row* of a workspace. Row 0 is the request's context (`find_context`). Any other row is the context
of a parent row and one drafted token (`extend_context`).

The *order* of a suffix is its length, below the branch length. A suffix ends on the edge of a node; a row's ends are
derived from its parent's at the first query.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.decoding.compiled import Plain, inlined, int64, records, subkernel
from pipeline.decoding.tree import FloatArray, IntArray
from pipeline.decoding.trie.arrays import Records, TrieArrays, slot_of
from pipeline.decoding.trie.nodes import find_child, locate

NUM_TRIES = 2
# End node of a suffix that was not looked up yet.
UNKNOWN = -1
# token: the last one of the row's context. parent: the row without it.
ROW = np.dtype([("token", "<i4"), ("parent", "<i4")], align=True)


class TriePair(NamedTuple):
    """Two tries, and in each the root of the request's namespace, or 0 if there is none."""

    own: TrieArrays
    shared: TrieArrays
    own_root: int
    shared_root: int


@inlined
def pair_of(plain: Plain) -> TriePair:
    """The pair from plain tuples."""
    return TriePair(TrieArrays(*plain[0]), TrieArrays(*plain[1]), plain[2], plain[3])


class Workspace(NamedTuple):
    """State of the contexts, in memory that is reused between calls.

    rows: [rows] see ROW. longest: [rows, tries] order of the longest known suffix. ends: [rows, tries, orders] the node
    on whose edge a suffix ends, 0 if the trie does not contain the suffix, UNKNOWN if it was not looked up; undefined
    for suffixes above `longest`. path: [orders] scratch. last_counts: [tries] count of the suffix queried last.
    indices, weights, shares: [tries * orders] scratch of `learning`.
    """

    rows: Records
    longest: IntArray
    ends: IntArray
    path: IntArray
    last_counts: IntArray
    indices: IntArray
    weights: FloatArray
    shares: FloatArray


def new_workspace(num_rows: int, branch_length: int) -> Workspace:
    """Memory for num_rows rows, including row 0."""
    num_suffixes = NUM_TRIES * branch_length
    return Workspace(
        records(np.zeros(num_rows, ROW)),
        np.zeros((num_rows, NUM_TRIES), np.int32),
        np.zeros((num_rows, NUM_TRIES, branch_length), np.int32),
        np.zeros(branch_length, np.int32),
        np.zeros(NUM_TRIES, np.int32),
        np.zeros(num_suffixes, np.int32),
        np.zeros(num_suffixes, np.float32),
        np.zeros(num_suffixes, np.float32),
    )


@subkernel
def trie_of(pair: TriePair, which: int) -> TrieArrays:
    """which: 0 for the request's own trie, 1 for the shared one."""
    return pair.own if which == 0 else pair.shared


@subkernel
def root_of(pair: TriePair, which: int) -> int:
    """The namespace's root in `trie_of(pair, which)`, 0 if there is none."""
    return pair.own_root if which == 0 else pair.shared_root


@subkernel
def find_context(pair: TriePair, work: Workspace, context: IntArray) -> None:
    """Set row 0 to a context [len]."""
    orders = work.ends.shape[2]
    for which in range(NUM_TRIES):
        trie, root = trie_of(pair, which), root_of(pair, which)
        ends = work.ends[0, which]
        ends[0] = root
        longest = 0
        # If a suffix is not in the trie, no longer one is.
        while root and longest < min(orders - 1, len(context)):
            node = locate(trie, root, context, len(context) - longest - 1, len(context))
            if not node:
                break
            longest += 1
            ends[longest] = node
        work.longest[0, which] = longest


@subkernel
def extend_context(pair: TriePair, work: Workspace, row: int, parent: int, token: int) -> None:
    """Set `row` to the context of a parent row, extended by a token."""
    work.rows[row].token = token
    work.rows[row].parent = parent
    orders = work.ends.shape[2]
    for which in range(NUM_TRIES):
        trie = trie_of(pair, which)
        longest = min(int64(work.longest[parent, which]) + 1, orders - 1)
        work.ends[row, which, 0] = root_of(pair, which)
        for order in range(1, longest + 1):
            work.ends[row, which, order] = UNKNOWN
        while longest > 0 and not suffix_end(trie, work, which, row, longest):
            longest -= 1
        work.longest[row, which] = longest


@subkernel
def suffix_end(trie: TrieArrays, work: Workspace, which: int, row: int, order: int) -> int:
    """The node on whose edge the suffix of this order of a row's context ends, or 0. The first query computes it from
    the parent rows."""
    steps = 0
    node = int64(work.ends[row, which, order])
    while node == UNKNOWN:
        work.path[steps] = row
        row = int64(work.rows[row].parent)
        steps += 1
        node = int64(work.ends[row, which, order - steps])
    while steps > 0:
        steps -= 1
        row = int64(work.path[steps])
        if node:
            node = _extended(trie, node, order - steps - 1, work.rows[row].token)
        work.ends[row, which, order - steps] = node
    return node


@subkernel
def _extended(trie: TrieArrays, node: int, depth: int, token: int) -> int:
    """End node of a string of `depth` tokens that ends on the edge of `node`, extended by a token; 0 if unknown."""
    if depth == trie.nodes[node].depth:
        return find_child(trie, node, token)
    return node if trie.text[slot_of(trie, trie.nodes[node].start + depth)] == token + 1 else 0
