"""What may follow a context, as compiled loops.

How likely a token is to follow a (real or drafted) context is estimated as in PPM, interpolated: each suffix of the
context that a trie knows has seen T continuations; the longest speaks first, and what it leaves over goes to the next
shorter one:

    p(token) = sum over contexts, longest first, of  escape so far * T / (T + S) * share of the token in that context

S, the doubt, is learnt online (see `learning`) for each trie, order (context length) and class of context (how often
seen, always with the same continuation or not). A context that occurred as often as the longer one before it is the
same place in the text and is passed over.
"""

from __future__ import annotations

import numpy as np

from pipeline.decoding.compiled import compiled
from pipeline.decoding.tree import FloatArray, IntArray
from pipeline.decoding.trie.contexts import LONGEST_MATCH, Pair, highest_order, next_context, seen, trie_of
from pipeline.decoding.trie.layout import COUNT, NEXT, START, TOKEN
from pipeline.decoding.trie.memory import int32, int64, load32, store32
from pipeline.decoding.trie.nodes import get
from pipeline.decoding.trie.workspace import NUM_TRIES, Workspace

# Classes of a context: seen 1, 2, up to 4, more times, always with one continuation; likewise with several.
NUM_CLASSES = 8
# Lengths of a match: up to 16, 24, 47 tokens, and more.
MATCH_CLASSES = 4
# Counts that the latest continuation of a context gets on top.
RECENT = np.float32(0.5)
# Children of a node that are looked at.
MAX_CHILDREN = 12


@compiled
def doubt_cell(work: Workspace, which: int, row: int, order: int, total: int, differ: int) -> int:
    """Where the doubt lies of a context that has seen `total` tokens."""
    if order == work.orders:
        length = load32(work.lengths, row * NUM_TRIES + which)
        order += 0 if length <= 16 else 1 if length <= 24 else 2 if length < LONGEST_MATCH else 3
    size = 0 if total <= 1 else 1 if total <= 2 else 2 if total <= 4 else 3
    return (which * (work.orders + MATCH_CLASSES) + order) * NUM_CLASSES + size + 4 * differ


@compiled
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


@compiled
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
