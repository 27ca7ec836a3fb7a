"""Compiled functions on the nodes of a trie: find, create, split, drop, and sort siblings."""

from __future__ import annotations

import numpy as np

from pipeline.decoding.compiled import int64, kernel, subkernel
from pipeline.decoding.tree import IntArray
from pipeline.decoding.trie.arrays import TrieArrays, slot_of

# Number of children at the front that are sorted by count; the others are sorted by last use.
NUM_FREQUENT = 16


@subkernel
def bucket_of(trie: TrieArrays, parent: int, token: int) -> int:
    """The bucket of a child."""
    mixed = (np.uint64(parent) << np.uint64(32)) ^ np.uint64(token)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    # The upper half, scaled to the number of buckets without a division.
    return int64(((mixed >> np.uint64(32)) * np.uint64(len(trie.buckets))) >> np.uint64(32))


@subkernel
def find_child(trie: TrieArrays, parent: int, token: int) -> int:
    """The row of the child whose edge begins with a token, or 0."""
    # Often it is the first child, whose record `link` reads as well, and then no bucket is read.
    row = int64(trie.nodes[parent].first_child)
    if row and trie.nodes[row].token == token:
        return row
    row = int64(trie.buckets[bucket_of(trie, parent, token)])
    while row and (trie.nodes[row].parent != parent or trie.nodes[row].token != token):
        row = int64(trie.bucket_next[row])
    return row


@subkernel
def extended(trie: TrieArrays, row: int, depth: int, token: int) -> int:
    """The node on whose edge a string of `depth` tokens ends after its extension by a token; 0 if that is unknown. row:
    the node on whose edge it ends before."""
    if depth == trie.nodes[row].depth:
        return find_child(trie, row, token)
    return row if trie.text[slot_of(trie, trie.nodes[row].start + depth)] == token + 1 else 0


@kernel
def locate(trie: TrieArrays, root: int, text: IntArray, begin: int, end: int) -> int:
    """The node on whose edge the string text[begin:end] ends, or 0 if it is unknown."""
    row = root
    for index in range(begin, end):
        row = extended(trie, row, index - begin, text[index])
        if not row:
            break
    return row


@subkernel
def link(trie: TrieArrays, row: int, parent: int) -> None:
    """Insert a node into its parent's list of children, or move it there after its count grew: to the front, but after
    those of the first `NUM_FREQUENT` that have higher counts.

    A walk over the first `NUM_FREQUENT` costs a cache miss per step, and most often passes all of them. So the last of
    them is noted in the first child (as minus its row, in `previous`) while their counts are known to be sorted.
    """
    nodes = trie.nodes
    count = nodes[row].count
    before, after, steps, is_sorted = 0, int64(nodes[parent].first_child), 0, True
    last = -int64(nodes[after].previous)
    if last and nodes[last].count > count:
        before, after, steps = last, int64(nodes[last].next), NUM_FREQUENT
    while after and steps < NUM_FREQUENT and nodes[after].count > count:
        if before and nodes[before].count < nodes[after].count:
            is_sorted = False
        before, after = after, int64(nodes[after].next)
        steps += 1
    if after == row:
        return
    if nodes[row].previous:
        _unlink(trie, row)
    _take_place(trie, row, parent, before, after)
    if steps == NUM_FREQUENT and is_sorted:
        nodes[nodes[parent].first_child].previous = -before


@subkernel
def _unlink(trie: TrieArrays, row: int) -> None:
    """Take a node out of its parent's list of children."""
    nodes = trie.nodes
    before, after = max(int64(nodes[row].previous), 0), int64(nodes[row].next)
    if before:
        nodes[before].next = after
    else:
        nodes[nodes[row].parent].first_child = after
    if after:
        nodes[after].previous = before


@subkernel
def _enter_bucket(trie: TrieArrays, row: int) -> None:
    bucket = bucket_of(trie, trie.nodes[row].parent, trie.nodes[row].token)
    trie.bucket_next[row] = trie.buckets[bucket]
    trie.buckets[bucket] = row


@subkernel
def _leave_bucket(trie: TrieArrays, row: int) -> None:
    bucket = bucket_of(trie, trie.nodes[row].parent, trie.nodes[row].token)
    other = int64(trie.buckets[bucket])
    if other == row:
        trie.buckets[bucket] = trie.bucket_next[row]
        return
    while trie.bucket_next[other] != row:
        other = int64(trie.bucket_next[other])
    trie.bucket_next[other] = trie.bucket_next[row]


@kernel
def fill_buckets(trie: TrieArrays) -> None:
    """Enter all nodes into empty buckets."""
    for row in range(1, trie.state[0].fresh):
        if trie.nodes[row].parent >= 0:
            _enter_bucket(trie, row)


@kernel
def new_node(trie: TrieArrays, parent: int, token: int, depth: int, count: int, start: int) -> int:
    """Create a child, or a root if parent is 0. The caller has made sure that a row is free. Returns the row."""
    state = trie.state[0]
    row = state.free
    if row:
        state.free = trie.nodes[row].next
    else:
        row = state.fresh
        state.fresh += 1
    state.num_nodes += 1
    node = trie.nodes[row]
    node.parent = parent
    node.token = token
    node.depth = depth
    node.count = count
    node.start = start
    node.first_child = 0
    node.next = 0
    node.previous = 0
    _enter_bucket(trie, row)
    if parent:
        link(trie, row, parent)
    return row


@subkernel
def drop_node(trie: TrieArrays, row: int) -> None:
    """Free a node. The caller must drop or move its children."""
    _leave_bucket(trie, row)
    node = trie.nodes[row]
    first = trie.nodes[trie.nodes[node.parent].first_child]
    if first.previous and node.count >= trie.nodes[-first.previous].count:
        first.previous = 0
    _unlink(trie, row)
    node.parent = -1
    node.next = trie.state[0].free
    trie.state[0].free = row
    trie.state[0].num_nodes -= 1


@subkernel
def _rekey(trie: TrieArrays, row: int, parent: int, token: int) -> None:
    """Give a node another parent and first token."""
    _leave_bucket(trie, row)
    trie.nodes[row].parent = parent
    trie.nodes[row].token = token
    _enter_bucket(trie, row)


@subkernel
def lengthen(trie: TrieArrays, row: int) -> None:
    """Move the border between a node and its only child, whose edge holds more than one token, down by one token."""
    node = trie.nodes[row]
    node.depth += 1
    child = int64(node.first_child)
    token = trie.text[slot_of(trie, trie.nodes[child].start + node.depth)] - 1
    _rekey(trie, child, row, token)


@subkernel
def split(trie: TrieArrays, row: int, depth: int) -> int:
    """Cut the edge of a node in two, the upper part down to `depth`. Returns the row of the upper part."""
    nodes = trie.nodes
    if nodes[row].depth == trie.state[0].branch_length:
        # No row refers to this one: it has no children, and no suffix that ends there can grow. So the new row can be
        # the lower part, which is cheaper.
        token = trie.text[slot_of(trie, nodes[row].start + depth)] - 1
        new_node(trie, row, token, nodes[row].depth, nodes[row].count, nodes[row].start)
        nodes[row].depth = depth
        return row
    # The lower part keeps its row, because its children refer to it. So does `ends` in `insertion.write_text`, if a
    # suffix of the text being written ends there.
    before, after = max(int64(nodes[row].previous), 0), int64(nodes[row].next)
    parent, token = nodes[row].parent, nodes[row].token
    upper = new_node(trie, 0, 0, depth, nodes[row].count, nodes[row].start)
    _rekey(trie, row, upper, trie.text[slot_of(trie, nodes[row].start + depth)] - 1)
    _rekey(trie, upper, parent, token)
    _take_place(trie, upper, parent, before, after)
    nodes[upper].first_child = row
    nodes[row].previous = 0
    nodes[row].next = 0
    return upper


@subkernel
def join(trie: TrieArrays, row: int) -> None:
    """Join a node with its only child, which has the same count. The child's row remains."""
    nodes = trie.nodes
    child = int64(nodes[row].first_child)
    before, after = max(int64(nodes[row].previous), 0), int64(nodes[row].next)
    parent, token = nodes[row].parent, nodes[row].token
    drop_node(trie, row)
    _rekey(trie, child, parent, token)
    _take_place(trie, child, parent, before, after)


@subkernel
def _take_place(trie: TrieArrays, row: int, parent: int, before: int, after: int) -> None:
    """Link a node between two siblings (0: none), in place of any others between them."""
    nodes = trie.nodes
    nodes[row].previous = before
    nodes[row].next = after
    if before:
        nodes[before].next = row
    else:
        nodes[parent].first_child = row
    if after:
        nodes[after].previous = row
    nodes[nodes[parent].first_child].previous = 0
