"""Where the contexts of draft nodes lie in two tries (0: the request's own text, 1: the shared one), as compiled loops.

A *place* is that of one suffix of a context, as `nodes.locate` returns it. The suffixes that a branch can hold are
found from those of the parent, and only when asked for. Contexts longer than a branch are followed in the text itself
(the *match*), as in PPM*.
"""

from __future__ import annotations

from typing import NamedTuple

from pipeline.decoding.compiled import compiled
from pipeline.decoding.tree import IntArray
from pipeline.decoding.trie.layout import COUNT, FIRST_CHILD, NEXT, NODE_BYTES, START, TAIL, TrieView
from pipeline.decoding.trie.memory import int32, int64, load32, prefetch, store32
from pipeline.decoding.trie.nodes import bucket_of, find_child, get, locate, wrapped
from pipeline.decoding.trie.workspace import NUM_TRIES, Workspace

# A match is not measured beyond so many tokens.
LONGEST_MATCH = 48
# Place of a suffix that was not looked for yet.
UNKNOWN = -(1 << 31)
# How many of the longest suffixes are asked for early.
ORDERS_AHEAD = 3


class Pair(NamedTuple):
    """Two tries and the roots of what may be seen in them; root 0 for nothing."""

    own: TrieView
    shared: TrieView
    own_root: int
    shared_root: int


@compiled
def trie_of(pair: Pair, which: int) -> TrieView:
    return pair.own if which == 0 else pair.shared


@compiled
def _cell(work: Workspace, row: int, which: int, order: int) -> int:
    return (row * NUM_TRIES + which) * work.orders + order


@compiled
def _extended(trie: TrieView, place: int, token: int, depth: int) -> int:
    """Where the context at `place` lies with one token more; depth: its length before."""
    if place == 0:
        return 0
    if place > 0:
        row = find_child(trie, place, token)
        if row and get(trie, row, COUNT) == TAIL:
            return -1 - wrapped(trie, get(trie, row, START) + depth + 1)
        return row
    slot = -1 - place
    if load32(trie.ring, slot) != token + 1:
        return 0
    return -1 - wrapped(trie, slot + 1)


@compiled
def find_context(pair: Pair, context: IntArray, work: Workspace) -> None:
    """Fill row 0 with the real context [len]."""
    for which in range(NUM_TRIES):
        trie = trie_of(pair, which)
        root = pair.own_root if which == 0 else pair.shared_root
        for order in range(work.orders):
            store32(work.places, _cell(work, 0, which, order), int32(0))
        store32(work.places, _cell(work, 0, which, 0), int32(root))
        store32(work.matches, which, int32(0))
        longest = 0
        # Whatever ends in an unknown string is unknown, too.
        while root and longest < min(work.orders - 1, len(context)):
            place = locate(trie, root, context, len(context) - longest - 1, len(context))
            if place == 0:
                break
            longest += 1
            store32(work.places, _cell(work, 0, which, longest), int32(place))
        store32(work.longest, which, int32(longest))
        match = _begin_match(trie, work, which, 0)
        if match:
            length = work.orders - 1
            slot = (-1 - match - work.orders) % trie.ring_len
            at = len(context) - work.orders
            while at >= 0 and length < LONGEST_MATCH and load32(trie.ring, slot) == context[at] + 1:
                length += 1
                at -= 1
                slot = slot - 1 if slot else trie.ring_len - 1
            store32(work.lengths, which, int32(length))


@compiled
def _begin_match(trie: TrieView, work: Workspace, which: int, row: int) -> int:
    """If the longest suffix that the trie can hold is known, follow one occurrence of it from here on."""
    order = work.orders - 1
    if load32(work.longest, row * NUM_TRIES + which) < order:
        return 0
    place = int64(load32(work.places, _cell(work, row, which, order)))
    if place > 0:
        child = get(trie, place, FIRST_CHILD)
        place = -1 - wrapped(trie, get(trie, child, START) + order) if child else 0
    store32(work.matches, row * NUM_TRIES + which, int32(place))
    store32(work.lengths, row * NUM_TRIES + which, int32(order))
    return place


@compiled
def enter(pair: Pair, work: Workspace, row: int) -> None:
    """Prepare a row whose token and parent are set."""
    parent = load32(work.parents, row)
    token = load32(work.tokens, row)
    for which in range(NUM_TRIES):
        trie = trie_of(pair, which)
        _extend_longest(trie, work, which, row, parent)
        root = pair.own_root if which == 0 else pair.shared_root
        store32(work.places, _cell(work, row, which, 0), int32(root))
        match = int64(load32(work.matches, parent * NUM_TRIES + which))
        if match:
            match = _extended(trie, match, token, 0)
        store32(work.matches, row * NUM_TRIES + which, int32(match))
        if match:
            length = min(load32(work.lengths, parent * NUM_TRIES + which) + 1, LONGEST_MATCH)
            store32(work.lengths, row * NUM_TRIES + which, int32(length))
        else:
            _begin_match(trie, work, which, row)


@compiled
def look_ahead(trie: TrieView, work: Workspace, which: int, parent: int, token: int, rows: bool) -> None:
    """A row with this parent and token will soon be entered: ask for the buckets, or (later) the nodes that it
    will need."""
    above = _cell(work, parent, which, 0)
    highest = min(load32(work.longest, parent * NUM_TRIES + which) + 1, work.orders - 1)
    for order in range(highest, max(highest - ORDERS_AHEAD, 0), -1):
        place = load32(work.places, above + order - 1)
        if place > 0:
            bucket = bucket_of(trie, place, token)
            if rows:
                prefetch(trie.nodes + NODE_BYTES * int64(load32(trie.heads, bucket)))
            else:
                prefetch(trie.heads + 4 * bucket)


@compiled
def _extend_longest(trie: TrieView, work: Workspace, which: int, row: int, parent: int) -> None:
    """Find the longest known suffix of a row's context; the shorter ones are found when they are asked for."""
    longest = min(int64(load32(work.longest, parent * NUM_TRIES + which)) + 1, work.orders - 1)
    here = _cell(work, row, which, 0)
    for order in range(1, longest + 1):
        store32(work.places, here + order, int32(UNKNOWN))
    while longest > 0:
        place = _place_of(trie, work, which, row, longest)
        if place:
            if place > 0:
                prefetch(trie.nodes + NODE_BYTES * int64(get(trie, place, FIRST_CHILD)))
            break
        longest -= 1
    store32(work.longest, row * NUM_TRIES + which, int32(longest))


@compiled
def _place_of(trie: TrieView, work: Workspace, which: int, row: int, order: int) -> int:
    """Where the suffix of `order` tokens of a row's context lies; worked out from the rows above it when first
    asked for."""
    steps = 0
    place = int64(load32(work.places, _cell(work, row, which, order)))
    while place == UNKNOWN:
        store32(work.path, steps, int32(row))
        row = int64(load32(work.parents, row))
        steps += 1
        place = int64(load32(work.places, _cell(work, row, which, order - steps)))
    while steps > 0:
        steps -= 1
        row = int64(load32(work.path, steps))
        place = _extended(trie, place, load32(work.tokens, row), order - steps - 1)
        store32(work.places, _cell(work, row, which, order - steps), int32(place))
    return place


@compiled
def highest_order(work: Workspace, row: int) -> int:
    cell = row * NUM_TRIES
    if load32(work.matches, cell) or load32(work.matches, cell + 1):
        return work.orders
    return max(load32(work.longest, cell), load32(work.longest, cell + 1))


@compiled
def seen(trie: TrieView, place: int) -> tuple[int, int, int]:
    """What followed the context at `place`: first child (or the slot of the only token, as -1 - slot; 0 if nothing
    did), how many tokens altogether, and whether they differ."""
    if place < 0:
        return (place, 1, 0) if load32(trie.ring, -1 - place) > 0 else (0, 0, 0)
    child = int64(get(trie, place, FIRST_CHILD))
    if child == 0:
        return 0, 0, 0
    if get(trie, child, NEXT) == 0:
        return child, max(int64(get(trie, child, COUNT)), 1), 0
    return child, int64(get(trie, place, COUNT)), 1


@compiled
def next_context(pair: Pair, work: Workspace, row: int, order: int, which: int) -> int:
    """Place of the context of this order (`orders`: the match), or 0 if it has nothing new to say."""
    if order == work.orders:
        return int64(load32(work.matches, row * NUM_TRIES + which))
    if order > load32(work.longest, row * NUM_TRIES + which):
        return 0
    trie = trie_of(pair, which)
    place = _place_of(trie, work, which, row, order)
    times = int64(0 if place == 0 else 1 if place < 0 else get(trie, place, COUNT))
    if order > 0 and times == load32(work.seen, which):
        return 0
    store32(work.seen, which, int32(times))
    return place
