"""Learning how far to trust contexts: gradient ascent, in log S of `estimate`, on the log probability of the tokens
that came."""

from __future__ import annotations

import numpy as np

from pipeline.decoding.compiled import compiled
from pipeline.decoding.tree import FloatArray, IntArray
from pipeline.decoding.trie.contexts import (
    Pair,
    enter,
    find_context,
    highest_order,
    next_context,
    seen,
    trie_of,
)
from pipeline.decoding.trie.estimate import doubt_cell
from pipeline.decoding.trie.layout import COUNT, LongArray, view_from
from pipeline.decoding.trie.memory import int32, load32, load_float, store32, store_float
from pipeline.decoding.trie.nodes import find_child, get
from pipeline.decoding.trie.workspace import NUM_TRIES, Workspace, workspace_from

# Probability of a token that no context names, and of any token; bounds of the learnt doubts.
LEAST_SHARE = 1e-6
LEAST_BELIEF = np.float32(1e-30)
LEAST_DOUBT, MOST_DOUBT = np.float32(0.0067), np.float32(148.0)


@compiled
def _learn_token(pair: Pair, work: Workspace, row: int, doubts: FloatArray, token: int, rate: float) -> None:
    """One step of gradient ascent on the log probability of `token` after a row's context."""
    num = 0
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
            share = np.float32(0.0)
            if child < 0:
                share = np.float32(load32(trie.ring, -1 - child) == token + 1)
            else:
                row_of_token = find_child(trie, place, token)
                if row_of_token:
                    share = np.float32(max(get(trie, row_of_token, COUNT), 1)) / np.float32(total)
            cell = doubt_cell(work, which, row, order, total, differ)
            store32(work.asked, num, int32(cell))
            store_float(work.weights, num, np.float32(total / (total + doubts[cell])))
            store_float(work.shares, num, share)
            num += 1
    # From the shortest context up: what it adds to what the shorter ones say of the token.
    below = np.float32(LEAST_SHARE)
    for index in range(num - 1, -1, -1):
        weight, share = load_float(work.weights, index), load_float(work.shares, index)
        store_float(work.shares, index, share - below)
        # Where many contexts were sure and wrong, nothing would be left to divide by.
        below = max(weight * share + (np.float32(1.0) - weight) * below, LEAST_BELIEF)
    escape = np.float32(1.0)
    for index in range(num):
        weight = load_float(work.weights, index)
        slope = -escape * load_float(work.shares, index) * weight * (np.float32(1.0) - weight) / below
        cell = load32(work.asked, index)
        doubts[cell] = min(max(doubts[cell] * np.exp(np.float32(rate * slope)), LEAST_DOUBT), MOST_DOUBT)
        escape *= np.float32(1.0) - weight


@compiled
def learn_tokens(
    own: LongArray,
    shared: LongArray,
    roots: tuple[int, int],
    memory: LongArray,
    context: IntArray,
    tokens: IntArray,
    doubts: FloatArray,
    rate: float,
) -> None:
    """Learn from the tokens that followed context, before they are inserted anywhere. Arguments as in
    `growth.grow_tree`; the workspace must have room for len(tokens) rows."""
    pair = Pair(view_from(own), view_from(shared), roots[0], roots[1])
    work = workspace_from(memory)
    find_context(pair, context, work)
    for index in range(len(tokens)):
        if index:
            store32(work.tokens, index, tokens[index - 1])
            store32(work.parents, index, int32(index - 1))
            enter(pair, work, index)
        _learn_token(pair, work, index, doubts, tokens[index], rate)
