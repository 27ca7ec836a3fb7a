"""Integrity check of a trie: links, counts, buckets, and the strings of nodes against the text.

It runs on every loaded snapshot, in `lookahead trie inspect --check` and in tests. It is safe on any content of the
arrays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pipeline.decoding.compiled import int64, kernel, subkernel
from pipeline.decoding.tree import IntArray
from pipeline.decoding.trie.arrays import TrieArrays, slot_of
from pipeline.decoding.trie.insertion import MAX_COUNT
from pipeline.decoding.trie.nodes import NUM_FREQUENT, bucket_of

# Fault numbers of `_find_fault`; 0 means no fault.
FAULTS = (
    "",
    "a counter lies beyond the arrays",
    "node {0} points beyond the arrays",
    "node {0} does not lie below its parent",
    "node {0} is in the wrong list of siblings",
    "the children of node {0} were seen more often than itself",
    "node {0} points at text that is forgotten",
    "node {0} is not spelled by the text that it points at",
    "free nodes are not listed as they should be, at node {0}",
    "a sequence of the text has a damaged header, at slot {0}",
    "a namespace has no root of its own, or a root has no namespace, at node {0}",
    "nodes are in use that are not counted, or not reached",
    "node {0} is in the wrong bucket",
)
_NO_FAULT, _COUNTER, _POINTER, _DEPTH, _SIBLINGS, _COUNT = range(6)
_FORGOTTEN, _SPELLING, _FREE, _HEADER, _ROOT, _NUMBER, _BUCKET = range(6, 13)


def check_arrays(trie: TrieArrays, roots: Mapping[str, int], with_buckets: bool = True) -> None:
    """Raise ValueError with the first fault and its node or slot, if any. roots: row of each namespace's root.
    with_buckets: check the hash table too."""
    fault, where = _find_fault(trie, np.asarray(sorted(roots.values()), np.int32), with_buckets)
    if fault:
        raise ValueError(f"the trie is damaged: {FAULTS[fault].format(where)}")


@kernel
def _find_fault(trie: TrieArrays, roots: IntArray, with_buckets: bool) -> tuple[int, int]:
    """The number of the first fault, and its node or slot. roots: [namespaces] ascending."""
    state, nodes, length = trie.state[0], trie.nodes, len(trie.text)
    if not (1 <= state.fresh <= len(nodes) and 0 <= state.free < state.fresh and state.branch_length >= 1):
        return _COUNTER, 0
    if not (0 <= state.oldest <= state.head <= state.oldest + length and 4 * state.branch_length <= length):
        return _COUNTER, 0
    if not 0 <= state.oldest_root < state.fresh:
        return _COUNTER, 0
    num_roots = num_used = 0
    for row in range(1, state.fresh):
        fault = _fault_of_node(trie, row)
        if fault:
            return fault, row
        num_used += nodes[row].parent >= 0
        if nodes[row].parent == 0:
            if num_roots == len(roots) or roots[num_roots] != row:
                return _ROOT, row
            num_roots += 1
    if num_roots < len(roots):
        return _ROOT, int64(roots[num_roots])
    num_reached = num_roots
    for row in range(1, state.fresh):
        if nodes[row].parent >= 0:
            num_children = _count_children(trie, row)
            if num_children < 0:
                return (_SIBLINGS if num_children == -1 else _COUNT), row
            num_reached += num_children
    if not num_used == num_reached == state.num_nodes:
        return _NUMBER, 0
    row, num_free = state.free, 0
    while row:
        num_free += 1
        if nodes[row].parent != -1 or num_used + num_free >= state.fresh:
            return _FREE, row
        row = int64(nodes[row].next)
    if num_used + num_free != state.fresh - 1:
        return _FREE, 0
    slot = _fault_in_text(trie)
    if slot >= 0:
        return _HEADER, slot
    return _fault_in_buckets(trie) if with_buckets else (_NO_FAULT, 0)


@subkernel
def _fault_of_node(trie: TrieArrays, row: int) -> int:
    """The fault of a node itself or of its relation to its parent."""
    state, nodes, length = trie.state[0], trie.nodes, len(trie.text)
    node = nodes[row]
    for value in (node.first_child, node.next, abs(node.previous)):
        if not 0 <= value < state.fresh:
            return _POINTER
    if not (-1 <= node.parent < state.fresh and 0 <= node.start < length and 0 <= node.depth <= state.branch_length):
        return _POINTER
    if node.parent == 0:
        return _NO_FAULT if node.depth == 0 and node.next == 0 and node.previous == 0 else _DEPTH
    if node.parent < 0:
        return _NO_FAULT
    above = nodes[node.parent]
    if above.parent < 0 or not 0 <= above.depth < node.depth or not 0 <= above.start < length:
        return _DEPTH
    if not 1 <= node.count <= above.count:
        return _COUNT
    if (node.start - state.oldest) % length >= state.head - state.oldest:
        return _FORGOTTEN
    if trie.text[slot_of(trie, node.start + above.depth)] != node.token + 1:
        return _SPELLING
    for offset in range(above.depth):
        if trie.text[slot_of(trie, node.start + offset)] != trie.text[slot_of(trie, above.start + offset)]:
            return _SPELLING
    # Only the edge of a single occurrence may extend beyond the text.
    for offset in range(above.depth, node.depth):
        if trie.text[slot_of(trie, node.start + offset)] <= 0:
            return _NO_FAULT if node.depth == state.branch_length and node.first_child == 0 else _SPELLING
    return _NO_FAULT


@subkernel
def _count_children(trie: TrieArrays, row: int) -> int:
    """The number of a node's children; -1 if their list is wrong, -2 if their counts exceed the node's, which
    is below `MAX_COUNT`."""
    child = int64(trie.nodes[row].first_child)
    # What the first child notes about the first `NUM_FREQUENT`, see `nodes.link`.
    note = min(int64(trie.nodes[child].previous), 0)
    before = note
    num_children = total = 0
    while child:
        node = trie.nodes[child]
        if node.parent != row or node.previous != before:
            return -1
        total += node.count
        num_children += 1
        if note and num_children == NUM_FREQUENT and note != -child:
            return -1
        if note and 1 < num_children <= NUM_FREQUENT and trie.nodes[before].count < node.count:
            return -1
        before, child = child, int64(node.next)
    if note and num_children < NUM_FREQUENT:
        return -1
    return num_children if total <= trie.nodes[row].count or trie.nodes[row].count == MAX_COUNT else -2


@subkernel
def _fault_in_text(trie: TrieArrays) -> int:
    """The slot of a damaged header of a sequence, or -1."""
    state, text = trie.state[0], trie.text
    if state.oldest_root and trie.nodes[state.oldest_root].parent:
        return 0
    position = state.oldest
    while position < state.head:
        slot = position % len(text)
        if text[slot] < 0:
            position += 1
            root = -int64(text[slot])
            if position == state.head or text[position % len(text)] >= 0:
                return slot
            if root >= state.fresh or trie.nodes[root].parent:
                return slot
        position += 1
    return -1


@subkernel
def _fault_in_buckets(trie: TrieArrays) -> tuple[int, int]:
    state, nodes, num_found = trie.state[0], trie.nodes, 0
    if not (state.num_unsplit <= state.num_buckets < 2 * state.num_unsplit and state.num_buckets <= len(trie.buckets)):
        return _COUNTER, 0
    for bucket in range(state.num_buckets):
        row = int64(trie.buckets[bucket])
        while row:
            num_found += 1
            if not 0 < row < state.fresh or nodes[row].parent < 0 or num_found > state.num_nodes:
                return _BUCKET, row
            if bucket_of(trie, nodes[row].parent, nodes[row].token) != bucket:
                return _BUCKET, row
            row = int64(trie.bucket_next[row])
    return (_NO_FAULT, 0) if num_found == state.num_nodes else (_BUCKET, 0)
