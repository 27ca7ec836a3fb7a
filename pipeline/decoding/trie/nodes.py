"""The nodes of a trie, as compiled functions: find, make, drop, and keep siblings in order. See `layout` for the
arrays."""

from __future__ import annotations

import numpy as np

from pipeline.decoding.compiled import compiled
from pipeline.decoding.tree import IntArray
from pipeline.decoding.trie.layout import (
    BUCKET_NEXT,
    BUCKETS_PER_NODE,
    COUNT,
    FIRST_CHILD,
    FREE,
    FRESH,
    NEXT,
    NUM_NODES,
    PARENT,
    PREVIOUS,
    START,
    TAIL,
    TOKEN,
    TrieView,
)
from pipeline.decoding.trie.memory import int32, int64, load32, load64, store32, store64

# So many children that were seen often keep their place before those that were seen last.
NUM_FREQUENT = 6


@compiled
def get(trie: TrieView, row: int, column: int) -> int:
    return load32(trie.nodes, row * 8 + column)


@compiled
def put(trie: TrieView, row: int, column: int, value: int) -> None:
    store32(trie.nodes, row * 8 + column, int32(value))


@compiled
def bump(trie: TrieView, entry: int, by: int) -> None:
    store64(trie.meta, entry, load64(trie.meta, entry) + by)


@compiled
def wrapped(trie: TrieView, slot: int) -> int:
    """The slot of the ring for a number less than once past its end."""
    return slot - trie.ring_len if slot >= trie.ring_len else slot


@compiled
def bucket_of(trie: TrieView, parent: int, token: int) -> int:
    mixed = (np.uint64(parent) << np.uint64(32)) ^ np.uint64(token)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    return int64(((mixed >> np.uint64(32)) * np.uint64(BUCKETS_PER_NODE * trie.num_nodes)) >> np.uint64(32))


@compiled
def find_child(trie: TrieView, parent: int, token: int) -> int:
    """The child's row, or 0."""
    row = int64(load32(trie.heads, bucket_of(trie, parent, token)))
    while row and (get(trie, row, PARENT) != parent or get(trie, row, TOKEN) != token):
        row = int64(get(trie, row, BUCKET_NEXT))
    return row


@compiled
def locate(trie: TrieView, root: int, text: IntArray, begin: int, end: int) -> int:
    """Where text[begin:end] lies: its node's row, or -1 - slot of the token that follows it if it lies in a tail
    (the slot may be unwritten), or 0 if it is unknown."""
    row = root
    for place in range(begin, end):
        row = find_child(trie, row, text[place])
        if not row:
            return 0
        if get(trie, row, COUNT) == TAIL:
            slot = wrapped(trie, get(trie, row, START) + place + 1 - begin)
            for rest in range(place + 1, end):
                if load32(trie.ring, slot) != text[rest] + 1:
                    return 0
                slot = wrapped(trie, slot + 1)
            return -1 - slot
    return row


@compiled
def link(trie: TrieView, row: int, parent: int, count: int) -> None:
    """Put a node into its parent's list of children: in front, but behind the first few if they were seen more
    often."""
    before, after = int64(0), int64(get(trie, parent, FIRST_CHILD))
    steps = 0
    while after and steps < NUM_FREQUENT and get(trie, after, COUNT) > count:
        before, after = after, int64(get(trie, after, NEXT))
        steps += 1
    put(trie, row, PREVIOUS, before)
    put(trie, row, NEXT, after)
    if before:
        put(trie, before, NEXT, row)
    else:
        put(trie, parent, FIRST_CHILD, row)
    if after:
        put(trie, after, PREVIOUS, row)


@compiled
def unlink(trie: TrieView, row: int) -> None:
    """Take a node out of its parent's list of children."""
    before, after = get(trie, row, PREVIOUS), get(trie, row, NEXT)
    if before:
        put(trie, before, NEXT, after)
    elif get(trie, row, PARENT) > 0:
        put(trie, get(trie, row, PARENT), FIRST_CHILD, after)
    if after:
        put(trie, after, PREVIOUS, before)


@compiled
def new_node(trie: TrieView, parent: int, token: int, count: int, start: int) -> int:
    """Make a child; parent 0 makes a root. The caller has seen to it that a row is free."""
    row = load64(trie.meta, FREE)
    if row:
        store64(trie.meta, FREE, int64(get(trie, row, NEXT)))
    else:
        row = load64(trie.meta, FRESH)
        bump(trie, FRESH, 1)
    bump(trie, NUM_NODES, 1)
    bucket = bucket_of(trie, parent, token)
    put(trie, row, PARENT, parent)
    put(trie, row, TOKEN, token)
    put(trie, row, COUNT, count)
    put(trie, row, START, start)
    put(trie, row, BUCKET_NEXT, load32(trie.heads, bucket))
    put(trie, row, FIRST_CHILD, 0)
    put(trie, row, NEXT, 0)
    put(trie, row, PREVIOUS, 0)
    store32(trie.heads, bucket, int32(row))
    if parent:
        link(trie, row, parent, count)
    return row


@compiled
def drop_node(trie: TrieView, row: int) -> None:
    """Free a node; its children, if any, must be dropped as well."""
    bucket = bucket_of(trie, get(trie, row, PARENT), get(trie, row, TOKEN))
    other = load32(trie.heads, bucket)
    if other == row:
        store32(trie.heads, bucket, get(trie, row, BUCKET_NEXT))
    else:
        while get(trie, other, BUCKET_NEXT) != row:
            other = get(trie, other, BUCKET_NEXT)
        put(trie, other, BUCKET_NEXT, get(trie, row, BUCKET_NEXT))
    unlink(trie, row)
    put(trie, row, PARENT, -1)
    put(trie, row, FIRST_CHILD, 0)
    put(trie, row, NEXT, load64(trie.meta, FREE))
    store64(trie.meta, FREE, int64(row))
    bump(trie, NUM_NODES, -1)
