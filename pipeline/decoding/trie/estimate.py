"""What may follow a context, by two tries (0: the request's own text, 1: the shared one), as compiled loops.

How likely a token is to follow a (real or drafted) context is estimated as in PPM, interpolated: each suffix of the context that a
trie knows has seen T continuations; the longest speaks first, and what it leaves over goes to the next shorter one:

    p(token) = sum over contexts, longest first, of  escape so far * T / (T + S) * share of the token in that context

S, the strength of doubt, is learnt online for each trie, order (context length) and class of context (how often seen, always with
the same continuation or not) by gradient ascent on the log probability of the tokens that came. A context that occurred as
often as the longer one before it is the same place in the text and is passed over. Contexts longer than a branch are followed
in the text itself (the *match*), as in PPM*.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from pipeline.decoding.tree import FloatArray, IntArray
from pipeline.decoding.trie.kernels import find_child, locate
from pipeline.decoding.trie.layout import (
    BRANCH_LENGTH,
    COUNT,
    FIRST_CHILD,
    NEXT,
    OLDEST,
    START,
    TAIL,
    TOKEN,
    TrieArrays,
)

NUM_TRIES = 2
NUM_CLASSES = 8
# Lengths of a match above a branch: up to 16, 24, 48 tokens, and more.
MATCH_CLASSES = 4
LONGEST_MATCH = 48
# Children of a node that are looked at.
MAX_CHILDREN = 12
MAX_CANDIDATES = 128
# Counts that the latest continuation of a context gets on top.
RECENT = 0.5
UNKNOWN = -(1 << 31)


class Contexts(NamedTuple):
    """Where the suffixes of the contexts of a draft tree lie. Row 0 is the real context, row i + 1 that of draft node i.

    tokens, parents: [rows] the draft, parents in rows. places: [rows, tries, orders] as `locate` returns, or UNKNOWN.
    longest: [rows, tries] no longer suffix is known. matches, lengths: [rows, tries] place and length of the match, or 0.
    """

    tokens: IntArray
    parents: IntArray
    places: IntArray
    longest: IntArray
    matches: IntArray
    lengths: IntArray


class Scratch(NamedTuple):
    tokens: IntArray
    counts: FloatArray
    path: IntArray


@njit(cache=True)
def new_contexts(num_rows: int, orders: int) -> Any:
    return Contexts(
        np.empty(num_rows, np.int32),
        np.empty(num_rows, np.int32),
        np.full((num_rows, 2, orders), UNKNOWN, np.int32),
        np.zeros((num_rows, 2), np.int32),
        np.zeros((num_rows, 2), np.int32),
        np.zeros((num_rows, 2), np.int32),
    )


@njit(cache=True)
def new_scratch(orders: int) -> Any:
    return Scratch(np.empty(MAX_CHILDREN, np.int32), np.empty(MAX_CHILDREN, np.float32), np.empty(orders + 1, np.int32))


@njit(cache=True, inline="always")
def _extended(trie: TrieArrays, place: int, token: int, depth: int) -> int:
    """Where the context at `place` lies with one token more; depth: its length before."""
    if place == 0:
        return 0
    length = len(trie.ring)
    if place > 0:
        row = find_child(trie, place, token)
        if row and trie.nodes[row, COUNT] == TAIL:
            slot = trie.nodes[row, START] + depth + 1
            return -1 - (slot - length if slot >= length else slot)
        return row
    slot = -1 - place
    if trie.ring[slot] != token + 1:
        return 0
    slot += 1
    return -1 - (slot - length if slot >= length else slot)


@njit(cache=True)
def _place_of(trie: TrieArrays, contexts: Contexts, which: int, row: int, order: int, path: IntArray) -> int:
    """Where the suffix of `order` tokens of a row's context lies; worked out from the rows above it when first asked for."""
    places = contexts.places
    steps = 0
    while places[row, which, order - steps] == UNKNOWN:
        path[steps] = row
        row = contexts.parents[row]
        steps += 1
    place = places[row, which, order - steps]
    for step in range(steps - 1, -1, -1):
        place = _extended(trie, place, contexts.tokens[path[step]], order - step - 1)
        places[path[step], which, order - step] = place
    return place


@njit(cache=True)
def find_context(trie: TrieArrays, root: int, context: IntArray, contexts: Contexts, which: int) -> None:
    """Fill row 0."""
    orders = contexts.places.shape[2]
    contexts.places[0, which, :] = 0
    contexts.places[0, which, 0] = root
    if root == 0:
        return
    for order in range(1, min(orders - 1, len(context)) + 1):
        place = locate(trie, root, context, len(context) - order, len(context))
        # Whatever ends in an unknown string is unknown, too.
        if place == 0:
            break
        contexts.places[0, which, order] = place
        contexts.longest[0, which] = order
    _begin_match(trie, contexts, which, 0)
    match = contexts.matches[0, which]
    if match:
        length = len(trie.ring)
        slot = (-1 - match - orders) % length
        at = len(context) - orders
        while at >= 0 and contexts.lengths[0, which] < LONGEST_MATCH and trie.ring[slot] == context[at] + 1:
            contexts.lengths[0, which] += 1
            at -= 1
            slot = slot - 1 if slot else length - 1


@njit(cache=True, inline="always")
def _begin_match(trie: TrieArrays, contexts: Contexts, which: int, row: int) -> None:
    """If the longest suffix that the trie can hold is known, follow its latest occurrence from here on."""
    order = contexts.places.shape[2] - 1
    place = contexts.places[row, which, order]
    if place == 0 or place == UNKNOWN:
        return
    if place < 0:
        contexts.matches[row, which] = place
        contexts.lengths[row, which] = order
    else:
        child = trie.nodes[place, FIRST_CHILD]
        if child:
            contexts.matches[row, which] = -1 - (trie.nodes[child, START] + order) % len(trie.ring)
            contexts.lengths[row, which] = order


@njit(cache=True)
def enter(first: TrieArrays, second: TrieArrays, roots: Any, contexts: Contexts, row: int, path: IntArray) -> None:
    """Prepare a row whose token and parent are set."""
    parent = contexts.parents[row]
    orders = contexts.places.shape[2]
    for which in range(NUM_TRIES):
        trie = first if which == 0 else second
        contexts.places[row, which, 0] = roots[which]
        longest = min(contexts.longest[parent, which] + 1, orders - 1)
        while longest > 0 and _place_of(trie, contexts, which, row, longest, path) == 0:
            longest -= 1
        contexts.longest[row, which] = longest
        match = contexts.matches[parent, which]
        if match:
            match = _extended(trie, match, contexts.tokens[row], 0)
            contexts.matches[row, which] = match
            contexts.lengths[row, which] = min(contexts.lengths[parent, which] + 1, LONGEST_MATCH)
        if match == 0 and longest == orders - 1:
            _begin_match(trie, contexts, which, row)


@njit(cache=True, inline="always")
def context_class(total: float, distinct: int) -> int:
    """0 .. 3: seen 1, 2, up to 4, more times, always with one continuation. 4 .. 7: likewise, with several."""
    size = 0 if total <= 1 else 1 if total <= 2 else 2 if total <= 4 else 3
    return size if distinct <= 1 else size + 4


@njit(cache=True)
def _continuations(trie: TrieArrays, place: int, scratch: Scratch) -> Any:
    """Fill scratch with what followed the context at `place`. Returns how many tokens, and the sum of their counts."""
    if place < 0:
        value = trie.ring[-1 - place]
        if value <= 0:
            return 0, 0.0
        scratch.tokens[0] = value - 1
        scratch.counts[0] = 1.0
        return 1, 1.0
    nodes = trie.nodes
    child = nodes[place, FIRST_CHILD]
    found = 0
    total = 0.0
    latest = -1
    latest_index = 0
    oldest = trie.meta[OLDEST] % len(trie.ring)
    while child and found < MAX_CHILDREN:
        count = max(nodes[child, COUNT], 1)
        scratch.tokens[found] = nodes[child, TOKEN]
        scratch.counts[found] = count
        total += count
        age = nodes[child, START] - oldest
        if age < 0:
            age += len(trie.ring)
        if age > latest:
            latest = age
            latest_index = found
        found += 1
        child = nodes[child, NEXT]
    if child:
        total = max(total, float(nodes[place, COUNT]))
    if found > 1:
        scratch.counts[latest_index] += RECENT
        total += RECENT
    return found, total


@njit(cache=True)
def speakers(
    first: TrieArrays, second: TrieArrays, contexts: Contexts, row: int, order: int, which: int, seen: IntArray, path: IntArray
) -> int:
    """Place of the context of this order that has something new to say, or 0."""
    if order > contexts.longest[row, which]:
        return 0
    trie = first if which == 0 else second
    place = _place_of(trie, contexts, which, row, order, path)
    times = 0 if place == 0 else 1 if place < 0 else trie.nodes[place, COUNT]
    if times == seen[which]:
        return 0
    seen[which] = times
    return place


@njit(cache=True, inline="always")
def match_order(length: int, orders: int) -> int:
    return orders + (0 if length <= 16 else 1 if length <= 24 else 2 if length < 48 else 3)


@njit(cache=True)
def gather(
    first: TrieArrays,
    second: TrieArrays,
    contexts: Contexts,
    row: int,
    strengths: FloatArray,
    tokens: IntArray,
    probs: FloatArray,
    scratch: Scratch,
    stop_below: float,
) -> int:
    """Fill tokens and probs with what may follow a row's context. Returns how many. Contexts that could not give any token
    stop_below or more are not asked."""
    size = 0
    escape = 1.0
    orders = contexts.places.shape[2]
    seen = np.zeros(2, np.int32)
    for order in range(orders, -1, -1):
        for which in range(NUM_TRIES):
            trie = first if which == 0 else second
            if order == orders:
                place = contexts.matches[row, which]
                kind = match_order(contexts.lengths[row, which], orders)
            else:
                place = speakers(first, second, contexts, row, order, which, seen, scratch.path)
                kind = order
            if place == 0:
                continue
            found, total = _continuations(trie, place, scratch)
            if found == 0:
                continue
            weight = total / (total + np.exp(strengths[which, kind, context_class(total, found)]))
            scale = escape * weight / total
            for index in range(found):
                token = scratch.tokens[index]
                at = 0
                while at < size and tokens[at] != token:
                    at += 1
                if at == size:
                    if size == len(tokens):
                        continue
                    tokens[at] = token
                    probs[at] = 0.0
                    size += 1
                probs[at] += scale * scratch.counts[index]
            escape *= 1.0 - weight
            if escape < stop_below:
                return size
    return size


@njit(cache=True)
def learn_token(
    first: TrieArrays,
    second: TrieArrays,
    contexts: Contexts,
    row: int,
    strengths: FloatArray,
    token: int,
    rate: float,
    scratch: Scratch,
) -> None:
    """One step of gradient ascent on the log probability of `token` after a row's context."""
    orders = contexts.places.shape[2]
    asked = np.empty((2 * orders + 2, 3), np.int64)
    weights = np.empty(2 * orders + 2)
    shares = np.empty(2 * orders + 2)
    num = 0
    seen = np.zeros(2, np.int32)
    for order in range(orders, -1, -1):
        for which in range(NUM_TRIES):
            trie = first if which == 0 else second
            if order == orders:
                place = contexts.matches[row, which]
                kind = match_order(contexts.lengths[row, which], orders)
            else:
                place = speakers(first, second, contexts, row, order, which, seen, scratch.path)
                kind = order
            if place == 0:
                continue
            found, total = _continuations(trie, place, scratch)
            if found == 0:
                continue
            share = 0.0
            for index in range(found):
                if scratch.tokens[index] == token:
                    share = scratch.counts[index] / total
            asked[num, 0] = which
            asked[num, 1] = kind
            asked[num, 2] = context_class(total, found)
            weights[num] = total / (total + np.exp(strengths[which, kind, asked[num, 2]]))
            shares[num] = share
            num += 1
    # below[i]: probability that contexts from i on give the token.
    below = np.empty(num + 1)
    below[num] = 1e-6
    for index in range(num - 1, -1, -1):
        below[index] = weights[index] * shares[index] + (1.0 - weights[index]) * below[index + 1]
    escape = 1.0
    for index in range(num):
        slope = -escape * (shares[index] - below[index + 1]) * weights[index] * (1.0 - weights[index]) / below[0]
        which, kind, size = asked[index]
        strengths[which, kind, size] = min(max(strengths[which, kind, size] + rate * slope, -5.0), 5.0)
        escape *= 1.0 - weights[index]
