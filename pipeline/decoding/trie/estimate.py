"""What may follow a context, by two tries (0: the request's own text, 1: the shared one), as compiled loops.

How likely a token is to follow a (real or drafted) context is estimated as in PPM, interpolated: each suffix of the
context that a trie knows has seen T continuations; the longest speaks first, and what it leaves over goes to the next
shorter one:

    p(token) = sum over contexts, longest first, of  escape so far * T / (T + S) * share of the token in that context

S, the doubt, is learnt online (see `learning`) for each trie, order (context length) and class of context (how often
seen, always with the same continuation or not). A context that occurred as often as the longer one before it is the
same place in the text and is passed over. Contexts longer than a branch are followed in the text itself (the *match*),
as in PPM*.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from pipeline.decoding.tree import FloatArray, IntArray
from pipeline.decoding.trie.layout import COUNT, FIRST_CHILD, NEXT, NODE_BYTES, START, TAIL, TOKEN, TrieView
from pipeline.decoding.trie.memory import int32, int64, load32, prefetch, store32
from pipeline.decoding.trie.nodes import bucket_of, find_child, get, locate, wrapped
from pipeline.decoding.trie.workspace import NUM_TRIES, Workspace

# Classes of a context: seen 1, 2, up to 4, more times, always with one continuation; likewise with several.
NUM_CLASSES = 8
# Lengths of a match: up to 16, 24, 47 tokens, and more.
MATCH_CLASSES = 4
LONGEST_MATCH = 48
# Counts that the latest continuation of a context gets on top.
RECENT = np.float32(0.5)
# Children of a node that are looked at.
MAX_CHILDREN = 12
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


@njit(cache=True)
def trie_of(pair: Pair, which: int) -> TrieView:
    return pair.own if which == 0 else pair.shared


@njit(cache=True)
def _cell(work: Workspace, row: int, which: int, order: int) -> int:
    return (row * NUM_TRIES + which) * work.orders + order


@njit(cache=True)
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


@njit(cache=True)
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


@njit(cache=True)
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


@njit(cache=True)
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


@njit(cache=True)
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


@njit(cache=True)
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


@njit(cache=True)
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


@njit(cache=True)
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


@njit(cache=True)
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


@njit(cache=True)
def doubt_cell(work: Workspace, which: int, row: int, order: int, total: int, differ: int) -> int:
    if order == work.orders:
        length = load32(work.lengths, row * NUM_TRIES + which)
        order += 0 if length <= 16 else 1 if length <= 24 else 2 if length < LONGEST_MATCH else 3
    size = 0 if total <= 1 else 1 if total <= 2 else 2 if total <= 4 else 3
    return (which * (work.orders + MATCH_CLASSES) + order) * NUM_CLASSES + size + 4 * differ


@njit(cache=True)
def highest_order(work: Workspace, row: int) -> int:
    cell = row * NUM_TRIES
    if load32(work.matches, cell) or load32(work.matches, cell + 1):
        return work.orders
    return max(load32(work.longest, cell), load32(work.longest, cell + 1))


@njit(cache=True)
def _add(tokens: IntArray, probs: FloatArray, size: int, token: int, share: float) -> int:
    """Add to what is known of a token; returns how many tokens there are."""
    at = 0
    while at < size and tokens[at] != token:
        at += 1
    if at < size:
        probs[at] += share
    elif size < len(tokens):
        tokens[at] = token
        probs[at] = share
        return size + 1
    return size


@njit(cache=True)
def gather(
    pair: Pair,
    work: Workspace,
    row: int,
    doubts: FloatArray,
    tokens: IntArray,
    probs: FloatArray,
    stop_below: float,
) -> int:
    """Fill tokens and probs with what may follow a row's context. Returns how many. Contexts that could not give
    any token stop_below or more are not asked. doubts: [tries * (orders + MATCH_CLASSES) * NUM_CLASSES]."""
    size = 0
    escape = np.float32(1.0)
    store32(work.seen, 0, int32(0))
    store32(work.seen, 1, int32(0))
    for order in range(highest_order(work, row), -1, -1):
        for which in range(NUM_TRIES):
            place = next_context(pair, work, row, order, which)
            if place == 0:
                continue
            trie = trie_of(pair, which)
            child, total, differ = seen(trie, place)
            if child == 0:
                continue
            doubt = doubts[doubt_cell(work, which, row, order, total, differ)]
            scale = escape / (np.float32(total) + doubt)
            if child < 0:
                size = _add(tokens, probs, size, load32(trie.ring, -1 - child) - 1, scale)
            else:
                # The latest continuation counts for more. Frequent children come first, then the latest.
                left = MAX_CHILDREN
                latest = get(trie, place, START)
                while child and left:
                    share = scale * np.float32(max(get(trie, child, COUNT), 1))
                    if differ and get(trie, child, START) == latest:
                        share += scale * RECENT
                    if share < stop_below:
                        break
                    size = _add(tokens, probs, size, get(trie, child, TOKEN), share)
                    child = int64(get(trie, child, NEXT))
                    left -= 1
            escape *= doubt / (np.float32(total) + doubt)
            if escape < np.float32(3.0) * stop_below:
                return size
    return size
