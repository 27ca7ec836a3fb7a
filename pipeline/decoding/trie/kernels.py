"""The compiled loops that change what a trie holds: take in text, forget the oldest, prune, drop a namespace."""

from __future__ import annotations

import numpy as np

from pipeline.decoding.compiled import compiled
from pipeline.decoding.tree import IntArray
from pipeline.decoding.trie.layout import (
    BUCKET_NEXT,
    COUNT,
    EPOCH,
    FIRST_CHILD,
    FRESH,
    HEAD,
    NUM_NODES,
    OLDEST,
    OLDEST_ROOT,
    PARENT,
    PREVIOUS,
    START,
    TAIL,
    TOKEN,
    TrieView,
)
from pipeline.decoding.trie.memory import int32, int64, load32, load64, store32, store64
from pipeline.decoding.trie.nodes import (
    bucket_of,
    bump,
    drop_node,
    find_child,
    get,
    link,
    locate,
    new_node,
    put,
    unlink,
    wrapped,
)

MAX_COUNT = 1 << 30


@compiled
def _visit(trie: TrieView, row: int, depth: int, start: int, oldest: int) -> None:
    """A suffix that starts in slot `start` goes through a known node of this depth. oldest: slot of the oldest text."""
    count = get(trie, row, COUNT)
    earlier = get(trie, row, START)
    if count == TAIL:
        # Two strings share this node now: what followed the first one becomes a node of its own.
        count = 1
        if depth < trie.branch_length:
            value = load32(trie.ring, wrapped(trie, earlier + depth))
            if value > 0:
                new_node(trie, row, value - 1, TAIL, earlier)
    count = min(count + 1, MAX_COUNT)
    put(trie, row, COUNT, count)
    # Slots that were reserved lie before those that other sequences have used since.
    age, new_age = earlier - oldest, start - oldest
    if age < 0:
        age += trie.ring_len
    if new_age < 0:
        new_age += trie.ring_len
    if new_age > age:
        put(trie, row, START, start)
    if get(trie, row, PREVIOUS):
        unlink(trie, row)
        link(trie, row, get(trie, row, PARENT), count)


@compiled
def forget_oldest(trie: TrieView) -> None:
    """Let go of the oldest slot of the ring, and of all nodes that only its suffix still holds."""
    slot = load64(trie.meta, OLDEST) % trie.ring_len
    value = load32(trie.ring, slot)
    store32(trie.ring, slot, int32(0))
    bump(trie, OLDEST, 1)
    if value < 0:
        store64(trie.meta, OLDEST_ROOT, int64(-value))
        store32(trie.ring, wrapped(trie, slot + 1), int32(0))
        bump(trie, OLDEST, 1)
    elif value > 0:
        root = load64(trie.meta, OLDEST_ROOT)
        last = root
        at = slot
        for _ in range(trie.branch_length):
            row = find_child(trie, last, value - 1)
            if not row:
                break
            last = row
            at = wrapped(trie, at + 1)
            value = load32(trie.ring, at)
            if value <= 0:
                break
        while last != root:
            above = int64(get(trie, last, PARENT))
            if get(trie, last, START) == slot and get(trie, last, FIRST_CHILD) == 0:
                drop_node(trie, last)
            last = above


@compiled
def has_room(trie: TrieView) -> bool:
    """Whether one more token fits in any case."""
    free = trie.num_nodes - 1 - load64(trie.meta, NUM_NODES)
    held = load64(trie.meta, HEAD) - load64(trie.meta, OLDEST)
    return free > 2 * trie.branch_length and held < trie.ring_len - 2


@compiled
def make_room(trie: TrieView, may_forget: bool) -> bool:
    """See to it that one more token fits; False if that would need more memory."""
    while not has_room(trie):
        if not may_forget:
            return False
        forget_oldest(trie)
    return True


@compiled
def _move_suffixes(trie: TrieView, root: int, text: IntArray, old: int, new: int) -> None:
    """The end of a sequence, text [len], was repeated: suffixes that start at position old + i start at new + i now."""
    for begin in range(len(text)):
        if old + begin < load64(trie.meta, OLDEST):
            continue
        row = root
        for place in range(begin, len(text)):
            row = find_child(trie, row, text[place])
            if not row:
                break
            # A node may not be older than its children, so all on the way are renewed; but another string's tail
            # stays its own.
            is_tail = get(trie, row, COUNT) == TAIL
            if not is_tail or get(trie, row, START) == (old + begin) % trie.ring_len:
                put(trie, row, START, (new + begin) % trie.ring_len)
            if is_tail:
                break


@compiled
def make_room_for_run(trie: TrieView, num_repeated: int, may_forget: bool) -> bool:
    """See to it that a run can be opened with so many tokens of its sequence; False if that would need more memory."""
    while not has_room(trie) or load64(trie.meta, HEAD) - load64(trie.meta, OLDEST) + num_repeated >= trie.ring_len - 4:
        if not may_forget:
            return False
        forget_oldest(trie)
    return True


@compiled
def open_run(trie: TrieView, root: int, repeated: IntArray, old: int) -> int:
    """Open a run with the last tokens of its sequence, which are held and end before position `old`. There is room
    for it. Returns the position of the next token."""
    length = trie.ring_len
    begin = load64(trie.meta, HEAD)
    store32(trie.ring, begin % length, int32(-root))
    store32(trie.ring, (begin + 1) % length, int32(-1 - len(repeated)))
    begin += 2
    for index in range(len(repeated)):
        store32(trie.ring, (begin + index) % length, int32(repeated[index] + 1))
    _move_suffixes(trie, root, repeated, old - len(repeated), begin)
    store64(trie.meta, HEAD, begin + len(repeated))
    return begin + len(repeated)


@compiled
def reserve(trie: TrieView, num_slots: int) -> None:
    """Keep the next slots of the ring for the run that ends there, forgetting the oldest text if need be."""
    bump(trie, HEAD, num_slots)
    while load64(trie.meta, HEAD) - load64(trie.meta, OLDEST) >= trie.ring_len - 2:
        forget_oldest(trie)


@compiled
def write_run(trie: TrieView, root: int, text: IntArray, first_new: int, position: int, may_forget: bool) -> int:
    """Take in text[first_new:], the first of them at `position`; the tokens before them stand in the ring just before
    it.

    Returns how many tokens were taken in: fewer than all if more memory is needed, or if what stands before them was
    forgotten meanwhile. position: as HEAD, or before it where slots were reserved.
    """
    longest = trie.branch_length
    # open_nodes[k]: node of the last k tokens, 0 where there is none or where they go on in a tail.
    open_nodes = np.zeros(longest + 1, np.int64)
    open_nodes[0] = root
    for k in range(1, min(longest, first_new + 1)):
        open_nodes[k] = max(locate(trie, root, text, first_new - k, first_new), 0)
    for place in range(first_new, len(text)):
        if not make_room(trie, may_forget):
            return place - first_new
        if position - min(place, longest - 1) < load64(trie.meta, OLDEST):
            return place - first_new
        slot = position % trie.ring_len
        oldest = load64(trie.meta, OLDEST) % trie.ring_len
        token = text[place]
        store32(trie.ring, slot, int32(token + 1))
        put(trie, root, COUNT, min(get(trie, root, COUNT) + 1, MAX_COUNT))
        put(trie, root, START, slot)
        for k in range(min(longest, place + 1), 0, -1):
            parent = open_nodes[k - 1]
            row = int64(0)
            if parent:
                start = slot - k + 1
                if start < 0:
                    start += trie.ring_len
                row = find_child(trie, parent, token)
                if row:
                    _visit(trie, row, k, start, oldest)
                else:
                    new_node(trie, parent, token, TAIL, start)
            open_nodes[k] = row
        position += 1
        if position > load64(trie.meta, HEAD):
            store64(trie.meta, HEAD, position)
    return len(text) - first_new


@compiled
def halve(trie: TrieView) -> None:
    """Halve all counts and drop what falls to nothing (the paper's pruning)."""
    fresh = load64(trie.meta, FRESH)
    for row in range(1, fresh):
        parent, count = get(trie, row, PARENT), get(trie, row, COUNT)
        if parent == 0:
            put(trie, row, COUNT, count >> 1)
        elif parent > 0:
            put(trie, row, COUNT, count >> 1 if count > 1 else -1)
    for row in range(1, fresh):
        if get(trie, row, PARENT) > 0 and get(trie, row, COUNT) < 0:
            drop_node(trie, row)
    bump(trie, EPOCH, 1)


@compiled
def drop_namespace(trie: TrieView, root: int) -> None:
    """Drop a root, everything below it, and its text."""
    owner = load64(trie.meta, OLDEST_ROOT)
    if owner == root:
        store64(trie.meta, OLDEST_ROOT, 0)
    position = load64(trie.meta, OLDEST)
    while position < load64(trie.meta, HEAD):
        slot = position % trie.ring_len
        value = load32(trie.ring, slot)
        if value < 0:
            owner = int64(-value)
        if owner == root:
            store32(trie.ring, slot, int32(0))
        if value < 0:
            position += 1
            if owner == root:
                store32(trie.ring, position % trie.ring_len, int32(0))
        position += 1
    row = int64(root)
    while True:
        while get(trie, row, FIRST_CHILD):
            row = int64(get(trie, row, FIRST_CHILD))
        above = int64(get(trie, row, PARENT))
        drop_node(trie, row)
        if row == root:
            break
        row = above
    bump(trie, EPOCH, 1)


@compiled
def rehash(trie: TrieView) -> None:
    """Fill empty heads from the nodes."""
    for row in range(1, load64(trie.meta, FRESH)):
        if get(trie, row, PARENT) >= 0:
            bucket = bucket_of(trie, get(trie, row, PARENT), get(trie, row, TOKEN))
            put(trie, row, BUCKET_NEXT, load32(trie.heads, bucket))
            store32(trie.heads, bucket, int32(row))
