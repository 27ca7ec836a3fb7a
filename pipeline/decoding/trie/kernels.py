"""The compiled loops that change a trie: find, insert, evict, prune. See `layout` for the arrays."""

from __future__ import annotations

import numpy as np
from numba import njit

from pipeline.decoding.tree import IntArray
from pipeline.decoding.trie.layout import (
    BRANCH_LENGTH,
    BUCKET_NEXT,
    COUNT,
    EPOCH,
    FIRST_CHILD,
    FREE,
    FRESH,
    HEAD,
    NEXT,
    NUM_NODES,
    OLDEST,
    OLDEST_ROOT,
    PARENT,
    PREVIOUS,
    START,
    TAIL,
    TOKEN,
    TrieArrays,
)

# So many children that were seen often keep their place before those that were seen last.
NUM_FREQUENT = 8


@njit(cache=True, inline="always")
def bucket_of(parent: int, token: int, num_buckets: int) -> int:
    mixed = (np.uint64(parent) << np.uint64(32)) ^ np.uint64(token)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    return np.int64(((mixed >> np.uint64(32)) * np.uint64(num_buckets)) >> np.uint64(32))


@njit(cache=True, inline="always")
def find_child(trie: TrieArrays, parent: int, token: int) -> int:
    """The child's row, or 0."""
    nodes = trie.nodes
    row = trie.heads[bucket_of(parent, token, len(trie.heads))]
    while row and (nodes[row, PARENT] != parent or nodes[row, TOKEN] != token):
        row = nodes[row, BUCKET_NEXT]
    return row


@njit(cache=True, inline="always")
def _link(trie: TrieArrays, row: int, parent: int) -> None:
    """Put a node into its parent's list of children: in front, but behind the first few if they were seen more often."""
    nodes = trie.nodes
    before, after = 0, nodes[parent, FIRST_CHILD]
    steps = 0
    while after and steps < NUM_FREQUENT and nodes[after, COUNT] > nodes[row, COUNT]:
        before, after = after, nodes[after, NEXT]
        steps += 1
    nodes[row, PREVIOUS] = before
    nodes[row, NEXT] = after
    if before:
        nodes[before, NEXT] = row
    else:
        nodes[parent, FIRST_CHILD] = row
    if after:
        nodes[after, PREVIOUS] = row


@njit(cache=True)
def new_node(trie: TrieArrays, parent: int, token: int, count: int, start: int) -> int:
    """Make a child, in front of its siblings. The caller has seen to it that a row is free."""
    nodes, meta = trie.nodes, trie.meta
    if meta[FREE]:
        row = meta[FREE]
        meta[FREE] = nodes[row, NEXT]
    else:
        row = meta[FRESH]
        meta[FRESH] += 1
    meta[NUM_NODES] += 1
    bucket = bucket_of(parent, token, len(trie.heads))
    nodes[row, PARENT] = parent
    nodes[row, TOKEN] = token
    nodes[row, COUNT] = count
    nodes[row, START] = start
    nodes[row, BUCKET_NEXT] = trie.heads[bucket]
    nodes[row, FIRST_CHILD] = 0
    nodes[row, NEXT] = 0
    nodes[row, PREVIOUS] = 0
    trie.heads[bucket] = row
    if parent:
        _link(trie, row, parent)
    return row


@njit(cache=True)
def drop_node(trie: TrieArrays, row: int) -> None:
    """Free a node; its children, if any, must be dropped as well."""
    nodes, meta = trie.nodes, trie.meta
    parent = nodes[row, PARENT]
    bucket = bucket_of(parent, nodes[row, TOKEN], len(trie.heads))
    other = trie.heads[bucket]
    if other == row:
        trie.heads[bucket] = nodes[row, BUCKET_NEXT]
    else:
        while nodes[other, BUCKET_NEXT] != row:
            other = nodes[other, BUCKET_NEXT]
        nodes[other, BUCKET_NEXT] = nodes[row, BUCKET_NEXT]
    _unlink(trie, row)
    nodes[row, PARENT] = -1
    nodes[row, FIRST_CHILD] = 0
    nodes[row, NEXT] = meta[FREE]
    meta[FREE] = row
    meta[NUM_NODES] -= 1


@njit(cache=True, inline="always")
def _unlink(trie: TrieArrays, row: int) -> None:
    """Take a node out of its parent's list of children."""
    nodes = trie.nodes
    before, after = nodes[row, PREVIOUS], nodes[row, NEXT]
    if before:
        nodes[before, NEXT] = after
    elif nodes[row, PARENT] > 0:
        nodes[nodes[row, PARENT], FIRST_CHILD] = after
    if after:
        nodes[after, PREVIOUS] = before


@njit(cache=True, inline="always")
def _visit(trie: TrieArrays, row: int, depth: int, start: int) -> None:
    """A suffix that starts in slot `start` goes through a known node of this depth."""
    nodes, ring = trie.nodes, trie.ring
    if nodes[row, COUNT] == TAIL:
        # Two strings share this node now: what followed the first one becomes a node of its own.
        earlier = nodes[row, START]
        nodes[row, COUNT] = 1
        if depth < trie.meta[BRANCH_LENGTH]:
            slot = earlier + depth
            if slot >= len(ring):
                slot -= len(ring)
            if ring[slot] > 0:
                new_node(trie, row, ring[slot] - 1, TAIL, earlier)
    nodes[row, COUNT] += 1
    # Slots that were reserved earlier lie before those that other sequences have used since.
    oldest = trie.meta[OLDEST] % len(ring)
    if (start - oldest) % len(ring) > (nodes[row, START] - oldest) % len(ring):
        nodes[row, START] = start
    if nodes[row, PREVIOUS]:
        _unlink(trie, row)
        _link(trie, row, nodes[row, PARENT])


@njit(cache=True)
def forget_oldest(trie: TrieArrays) -> None:
    """Let go of the oldest slot of the ring, and of all nodes that only its suffix still holds."""
    nodes, ring, meta = trie.nodes, trie.ring, trie.meta
    slot = meta[OLDEST] % len(ring)
    value = ring[slot]
    if value < 0:
        meta[OLDEST_ROOT] = -value
        following = (slot + 1) % len(ring)
        ring[slot] = 0
        ring[following] = 0
        meta[OLDEST] += 2
        return
    if value > 0:
        row = meta[OLDEST_ROOT]
        last = row
        at = slot
        for _ in range(meta[BRANCH_LENGTH]):
            if ring[at] <= 0:
                break
            row = find_child(trie, row, ring[at] - 1)
            if not row:
                break
            last = row
            at = at + 1 if at + 1 < len(ring) else 0
        while last != meta[OLDEST_ROOT]:
            above = nodes[last, PARENT]
            if nodes[last, START] == slot and nodes[last, FIRST_CHILD] == 0:
                drop_node(trie, last)
            last = above
        ring[slot] = 0
    meta[OLDEST] += 1


@njit(cache=True)
def has_room(trie: TrieArrays) -> bool:
    """Whether one more token fits in any case."""
    meta = trie.meta
    free = len(trie.nodes) - 1 - meta[NUM_NODES]
    return free > 2 * meta[BRANCH_LENGTH] and meta[HEAD] - meta[OLDEST] < len(trie.ring) - 2


@njit(cache=True)
def make_room(trie: TrieArrays, may_forget: bool) -> bool:
    """See to it that one more token fits; False if that would need more memory."""
    while not has_room(trie):
        if not may_forget:
            return False
        forget_oldest(trie)
    return True


@njit(cache=True)
def _move_suffixes(trie: TrieArrays, root: int, text: IntArray, old: int, new: int) -> None:
    """The end of a sequence, text [len], was repeated: suffixes that start at position old + i start at new + i now."""
    nodes = trie.nodes
    length = len(trie.ring)
    for begin in range(len(text)):
        if old + begin < trie.meta[OLDEST]:
            continue
        row = root
        for place in range(begin, len(text)):
            row = find_child(trie, row, text[place])
            if not row:
                break
            if nodes[row, START] == (old + begin) % length:
                nodes[row, START] = (new + begin) % length
            if nodes[row, COUNT] == TAIL:
                break


@njit(cache=True)
def open_run(trie: TrieArrays, root: int, repeated: IntArray, old: int, may_forget: bool) -> int:
    """Open a run with the last tokens of its sequence, which end before position `old`. Returns the position of the next
    token, or -1 if that would need more memory."""
    ring, meta = trie.ring, trie.meta
    length = len(ring)
    while not has_room(trie) or meta[HEAD] - meta[OLDEST] + len(repeated) >= length - 4:
        if not may_forget:
            return -1
        forget_oldest(trie)
    ring[meta[HEAD] % length] = -root
    ring[(meta[HEAD] + 1) % length] = -1 - len(repeated)
    begin = meta[HEAD] + 2
    for index in range(len(repeated)):
        ring[(begin + index) % length] = repeated[index] + 1
    _move_suffixes(trie, root, repeated, old - len(repeated), begin)
    meta[HEAD] = begin + len(repeated)
    return meta[HEAD]


@njit(cache=True)
def reserve(trie: TrieArrays, num_slots: int) -> None:
    """Keep the next slots of the ring for the run that ends there, forgetting the oldest text if need be."""
    trie.meta[HEAD] += num_slots
    while trie.meta[HEAD] - trie.meta[OLDEST] >= len(trie.ring) - 2:
        forget_oldest(trie)


@njit(cache=True)
def locate(trie: TrieArrays, root: int, text: IntArray, begin: int, end: int) -> int:
    """Where text[begin:end] lies: its node's row, or -1 - slot of the token that follows it if it lies in a tail (the slot
    may be unwritten), or 0 if it is unknown."""
    nodes, ring = trie.nodes, trie.ring
    row = root
    for place in range(begin, end):
        row = find_child(trie, row, text[place])
        if not row:
            return 0
        if nodes[row, COUNT] == TAIL:
            slot = (nodes[row, START] + place + 1 - begin) % len(ring)
            for rest in range(place + 1, end):
                if ring[slot] != text[rest] + 1:
                    return 0
                slot = slot + 1 if slot + 1 < len(ring) else 0
            return -1 - slot
    return row


@njit(cache=True)
def write_run(
    trie: TrieArrays, root: int, text: IntArray, first_new: int, position: int, may_forget: bool
) -> int:
    """Take in text[first_new:], the first of them at `position`; the tokens before them stand in the ring just before it.

    Returns how many tokens were taken in: fewer than all only if more memory is needed. position: as HEAD, or before it
    where slots were reserved.
    """
    nodes, ring, meta = trie.nodes, trie.ring, trie.meta
    length = len(ring)
    longest = meta[BRANCH_LENGTH]
    # open_nodes[k]: node of the last k tokens, 0 where there is none or where they go on in a tail.
    open_nodes = np.zeros(longest + 1, np.int64)
    open_nodes[0] = root
    for k in range(1, min(longest, first_new + 1)):
        row = locate(trie, root, text, first_new - k, first_new)
        open_nodes[k] = max(row, 0)
    for place in range(first_new, len(text)):
        if not make_room(trie, may_forget):
            return place - first_new
        slot = position % length
        token = text[place]
        ring[slot] = token + 1
        for k in range(min(longest, place + 1), 0, -1):
            parent = open_nodes[k - 1]
            if parent:
                start = slot - k + 1
                if start < 0:
                    start += length
                row = find_child(trie, parent, token)
                if row:
                    _visit(trie, row, k, start)
                else:
                    new_node(trie, parent, token, TAIL, start)
                open_nodes[k] = row
            else:
                open_nodes[k] = 0
        position += 1
        meta[HEAD] = max(meta[HEAD], position)
    return len(text) - first_new


@njit(cache=True)
def halve(trie: TrieArrays) -> None:
    """Halve all counts and drop what falls to nothing (the paper's pruning)."""
    nodes, meta = trie.nodes, trie.meta
    for row in range(1, meta[FRESH]):
        if nodes[row, PARENT] > 0 and nodes[row, COUNT] <= 1:
            nodes[row, COUNT] = -1
        elif nodes[row, PARENT] > 0:
            nodes[row, COUNT] >>= 1
    for row in range(1, meta[FRESH]):
        if nodes[row, PARENT] > 0 and nodes[row, COUNT] == -1:
            drop_node(trie, row)
    meta[EPOCH] += 1


@njit(cache=True)
def drop_subtree(trie: TrieArrays, root: int) -> None:
    """Drop a root, everything below it, and its text."""
    nodes, ring, meta = trie.nodes, trie.ring, trie.meta
    owner = meta[OLDEST_ROOT]
    if owner == root:
        meta[OLDEST_ROOT] = 0
    position = meta[OLDEST]
    while position < meta[HEAD]:
        slot = position % len(ring)
        if ring[slot] < 0:
            owner = -ring[slot]
            if owner == root:
                ring[slot] = 0
                ring[(slot + 1) % len(ring)] = 0
            position += 1
        elif owner == root:
            ring[slot] = 0
        position += 1
    row = root
    while True:
        while nodes[row, FIRST_CHILD]:
            row = nodes[row, FIRST_CHILD]
        above = nodes[row, PARENT]
        drop_node(trie, row)
        if row == root:
            break
        row = above
    trie.meta[EPOCH] += 1


@njit(cache=True)
def rehash(trie: TrieArrays) -> None:
    """Fill empty heads from the nodes."""
    nodes = trie.nodes
    for row in range(1, trie.meta[FRESH]):
        if nodes[row, PARENT] >= 0:
            bucket = bucket_of(nodes[row, PARENT], nodes[row, TOKEN], len(trie.heads))
            nodes[row, BUCKET_NEXT] = trie.heads[bucket]
            trie.heads[bucket] = row
