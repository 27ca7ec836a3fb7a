"""Finds the suffixes of contexts in two tries (0: the request's own, 1: the shared one), in compiled loops.

Each context has a *row* of a workspace. Row 0 is the request's context (`find_context`). Any other row is the context
of a parent row and one drafted token (`extend_context`). The *order* of a suffix is its length. It is below the branch
length.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.decoding.compiled import Plain, inlined, int64, subkernel
from pipeline.decoding.tree import FloatArray, IntArray
from pipeline.decoding.trie.arrays import TrieArrays
from pipeline.decoding.trie.nodes import extended

NUM_TRIES = 2


class TriePair(NamedTuple):
    """Two tries, and in each the root of the request's namespace, or 0 if there is none."""

    tries: tuple[TrieArrays, TrieArrays]
    roots: tuple[int, int]


@inlined
def pair_of(plain: Plain) -> TriePair:
    """The pair from plain tuples."""
    return TriePair((TrieArrays(*plain[0]), TrieArrays(*plain[1])), (plain[2], plain[3]))


class Workspace(NamedTuple):
    """State of the contexts, in memory that is reused between calls.

    longest: [rows, tries] order of the longest suffix in the trie. ends: [rows, tries, orders] the node on whose edge
    each suffix ends; undefined above `longest`. indices, weights, shares: [tries * orders] scratch of `learning`.
    """

    longest: IntArray
    ends: IntArray
    indices: IntArray
    weights: FloatArray
    shares: FloatArray


def new_workspace(num_rows: int, branch_length: int) -> Workspace:
    """Memory for num_rows rows, including row 0."""
    num_suffixes = NUM_TRIES * branch_length
    return Workspace(
        np.zeros((num_rows, NUM_TRIES), np.int32),
        np.zeros((num_rows, NUM_TRIES, branch_length), np.int32),
        np.zeros(num_suffixes, np.int32),
        np.zeros(num_suffixes, np.float32),
        np.zeros(num_suffixes, np.float32),
    )


@subkernel
def find_context(pair: TriePair, work: Workspace, context: IntArray) -> None:
    """Set row 0 to a context [len]."""
    work.longest[0] = 0
    for index in range(max(0, len(context) - work.ends.shape[2] + 1), len(context)):
        extend_context(pair, work, 0, 0, context[index])
    for which in range(NUM_TRIES):
        work.ends[0, which, 0] = pair.roots[which]


@subkernel
def extend_context(pair: TriePair, work: Workspace, row: int, parent: int, token: int) -> None:
    """Set `row` to the context of a parent row, which may be the same row, extended by a token."""
    for which in range(NUM_TRIES):
        trie, most = pair.tries[which], min(int64(work.longest[parent, which]) + 1, work.ends.shape[2] - 1)
        node, order = int64(pair.roots[which]), 0
        work.ends[row, which, 0] = node
        # If a suffix is not in the trie, no longer one is.
        while node and order < most:
            node = extended(trie, node, order, token)
            if node:
                order += 1
                node, work.ends[row, which, order] = int64(work.ends[parent, which, order]), node
        work.longest[row, which] = order
