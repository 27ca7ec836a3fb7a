"""Growing a draft tree from what two tries know: the request's own text and the shared one.

How likely a token is to follow a (real or drafted) context is estimated as in PPM, interpolated: every suffix of the context
that a trie knows has seen T continuations; the longest speaks first, and what it leaves over goes to the next shorter one:

    p(token) = sum over contexts, longest first, of  escape so far * T / (T + S) * share of the token in that context

S, the strength of doubt, is learnt online for each trie, order (context length) and class of context (how often seen, always with
the same continuation or not) by gradient ascent on the log probability of the tokens that came.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from pipeline.decoding.tree import FloatArray, IntArray
from pipeline.decoding.trie.kernels import find_child, locate
from pipeline.decoding.trie.layout import BRANCH_LENGTH, COUNT, FIRST_CHILD, NEXT, START, TAIL, TrieArrays

MAX_CHILDREN = 12
NUM_CLASSES = 8
MAX_ORDERS = 64
MAX_CANDIDATES = 256
FLOOR = 1e-6
RECENT = 0.5


@njit(cache=True, inline="always")
def _extended(trie: TrieArrays, place: int, token: int, depth: int) -> int:
    """Where the context at `place` [as `locate` returns] lies with one token more; depth: its length before."""
    if place == 0:
        return 0
    if place > 0:
        row = find_child(trie, place, token)
        if row and trie.nodes[row, COUNT] == TAIL:
            return -1 - (trie.nodes[row, START] + depth + 1) % len(trie.ring)
        return row
    slot = -1 - place
    if trie.ring[slot] != token + 1:
        return 0
    return -1 - (slot + 1) % len(trie.ring)


@njit(cache=True, inline="always")
def context_class(total: int, distinct: int) -> int:
    size = 0 if total <= 1 else 1 if total <= 2 else 2 if total <= 4 else 3 if total <= 8 else 4
    if distinct <= 1:
        return size
    return 4 + min(size, 3)


@njit(cache=True)
def _continuations(trie: TrieArrays, place: int, tokens: IntArray, counts: FloatArray):
    """Fill tokens and counts with what followed the context at `place`, the latest first. Returns how many, and the sum of
    their counts."""
    if place < 0:
        value = trie.ring[-1 - place]
        if value <= 0:
            return 0, 0
        tokens[0] = value - 1
        counts[0] = 1
        return 1, 1
    nodes = trie.nodes
    child = nodes[place, FIRST_CHILD]
    found = 0
    total = 0
    while child and found < MAX_CHILDREN:
        count = max(nodes[child, COUNT], 1)
        tokens[found] = trie.nodes[child, 1]
        counts[found] = count
        total += count
        found += 1
        child = nodes[child, NEXT]
    if child:
        total = max(total, nodes[place, COUNT])
    return found, total


@njit(cache=True, inline="always")
def trie_of(private, shared, which):
    return private if which == 0 else shared


@njit(cache=True)
def _gather(private, shared, places, strengths, tokens, probs, scratch_tokens, scratch_counts, stop_below):
    """Candidates after the context whose suffixes lie at places [2, orders]. Returns how many there are."""
    size = 0
    escape = 1.0
    seen = (-1, -1)
    for order in range(places.shape[1] - 1, -1, -1):
        for which in range(2):
            place = places[which, order]
            if place == 0:
                continue
            # As often as the longer context: the same occurrences, which tell nothing new.
            times = 1 if place < 0 else trie_of(private, shared, which).nodes[place, COUNT]
            if times == seen[which]:
                continue
            seen = (times, seen[1]) if which == 0 else (seen[0], times)
            found, total = _continuations(private if which == 0 else shared, place, scratch_tokens, scratch_counts)
            if found == 0:
                continue
            strength = strengths[which, order, context_class(total, found)]
            weight = total / (total + np.exp(strength))
            scratch_counts[0] += RECENT
            scale = escape * weight / (total + RECENT)
            for index in range(found):
                token = scratch_tokens[index]
                at = 0
                while at < size and tokens[at] != token:
                    at += 1
                if at == size:
                    if size == len(tokens):
                        continue
                    tokens[at] = token
                    probs[at] = 0.0
                    size += 1
                probs[at] += scale * scratch_counts[index]
            escape *= 1.0 - weight
            if escape < stop_below:
                return size
    return size


@njit(cache=True)
def learn(private, shared, places, strengths, token, rate, scratch_tokens, scratch_counts):
    """One step of gradient ascent on the log probability of `token` after the context at places [2, orders]."""
    orders = places.shape[1]
    used = np.empty((2 * orders, 3), np.int64)
    weights = np.empty(2 * orders)
    shares = np.empty(2 * orders)
    num = 0
    seen = (-1, -1)
    for order in range(orders - 1, -1, -1):
        for which in range(2):
            place = places[which, order]
            if place == 0:
                continue
            times = 1 if place < 0 else trie_of(private, shared, which).nodes[place, COUNT]
            if times == seen[which]:
                continue
            seen = (times, seen[1]) if which == 0 else (seen[0], times)
            found, total = _continuations(private if which == 0 else shared, place, scratch_tokens, scratch_counts)
            if found == 0:
                continue
            scratch_counts[0] += RECENT
            share = 0.0
            for index in range(found):
                if scratch_tokens[index] == token:
                    share = scratch_counts[index] / (total + RECENT)
            kind = context_class(total, found)
            used[num, 0] = which
            used[num, 1] = order
            used[num, 2] = kind
            weights[num] = total / (total + np.exp(strengths[which, order, kind]))
            shares[num] = share
            num += 1
    # below[i]: probability that all contexts from i on give, once asked.
    below = np.empty(num + 1)
    below[num] = FLOOR
    for index in range(num - 1, -1, -1):
        below[index] = weights[index] * shares[index] + (1.0 - weights[index]) * below[index + 1]
    escape = 1.0
    for index in range(num):
        slope = escape * (shares[index] - below[index + 1]) / below[0]
        slope *= -weights[index] * (1.0 - weights[index])
        which, order, kind = used[index]
        value = strengths[which, order, kind] + rate * slope
        strengths[which, order, kind] = min(max(value, -5.0), 5.0)
        escape *= 1.0 - weights[index]


@njit(cache=True)
def find_context(trie: TrieArrays, root: int, context: IntArray, places: IntArray) -> None:
    """Fill places [orders] with where the suffixes of context of 0, 1, 2 ... tokens lie."""
    places[:] = 0
    places[0] = root
    if root == 0:
        return
    for order in range(1, min(len(places) - 1, len(context)) + 1):
        if order >= len(places):
            break
        place = locate(trie, root, context, len(context) - order, len(context))
        # A suffix of a known string is known.
        if place == 0:
            break
        places[order] = place


@njit(cache=True)
def step_places(trie: TrieArrays, root: int, places: IntArray, token: int, result: IntArray) -> None:
    """Where the suffixes lie once the context has one token more."""
    for order in range(len(places) - 1, 0, -1):
        result[order] = _extended(trie, places[order - 1], token, order - 1)
    result[0] = root


@njit(cache=True)
def learn_tokens(private, private_root, shared, shared_root, context, tokens, strengths, rate):
    """Learn from the tokens that followed context."""
    orders = shared.meta[BRANCH_LENGTH]
    scratch_tokens = np.empty(MAX_CHILDREN, np.int32)
    scratch_counts = np.empty(MAX_CHILDREN, np.float32)
    places = np.zeros((2, orders), np.int32)
    find_context(private, private_root, context, places[0])
    find_context(shared, shared_root, context, places[1])
    for token in tokens:
        learn(private, shared, places, strengths, token, rate, scratch_tokens, scratch_counts)
        step_places(private, private_root, places[0], token, places[0])
        step_places(shared, shared_root, places[1], token, places[1])


@njit(cache=True)
def grow_tree(private, private_root, shared, shared_root, context, strengths, max_nodes, max_depth, root_fan, fan):
    """The most probable paths: (token_ids, parents, path probabilities), parents first. root_fan, fan: how many children the
    root and other nodes may have at most."""
    orders = shared.meta[BRANCH_LENGTH]
    scratch_tokens = np.empty(MAX_CHILDREN, np.int32)
    scratch_counts = np.empty(MAX_CHILDREN, np.float32)
    tokens = np.empty(MAX_CANDIDATES, np.int32)
    probs = np.empty(MAX_CANDIDATES, np.float32)
    places = np.zeros((max_nodes + 1, 2, orders), np.int32)
    find_context(private, private_root, context, places[0, 0])
    find_context(shared, shared_root, context, places[0, 1])
    out_token = np.empty(max_nodes, np.int32)
    out_parent = np.empty(max_nodes, np.int32)
    out_prob = np.empty(max_nodes, np.float32)
    out_depth = np.empty(max_nodes, np.int32)
    capacity = (max_nodes + 1) * MAX_CANDIDATES
    heap = np.empty(capacity, np.float32)
    heap_token = np.empty(capacity, np.int32)
    heap_parent = np.empty(capacity, np.int32)
    heap_size = 0
    taken = 0
    current = -1
    while True:
        path = 1.0 if current < 0 else out_prob[current]
        depth = 0 if current < 0 else out_depth[current]
        if depth < max_depth:
            if current >= 0:
                parent = out_parent[current] + 1
                step_places(private, private_root, places[parent, 0], out_token[current], places[current + 1, 0])
                step_places(shared, shared_root, places[parent, 1], out_token[current], places[current + 1, 1])
            size = _gather(
                private, shared, places[current + 1], strengths, tokens, probs, scratch_tokens, scratch_counts, 1e-3
            )
            limit = root_fan if current < 0 else fan
            for _ in range(min(size, limit)):
                if limit < size:
                    best = 0
                    for index in range(size):
                        if probs[index] > probs[best]:
                            best = index
                else:
                    best = _
                prob = path * probs[best]
                token = tokens[best]
                if limit < size:
                    probs[best] = -1.0
                # Push.
                at = heap_size
                heap_size += 1
                while at > 0:
                    above = (at - 1) >> 1
                    if heap[above] >= prob:
                        break
                    heap[at] = heap[above]
                    heap_token[at] = heap_token[above]
                    heap_parent[at] = heap_parent[above]
                    at = above
                heap[at] = prob
                heap_token[at] = token
                heap_parent[at] = current
        if taken >= max_nodes or heap_size == 0:
            break
        out_token[taken] = heap_token[0]
        out_parent[taken] = heap_parent[0]
        out_prob[taken] = heap[0]
        out_depth[taken] = 1 if heap_parent[0] < 0 else out_depth[heap_parent[0]] + 1
        current = taken
        taken += 1
        heap_size -= 1
        prob = heap[heap_size]
        token = heap_token[heap_size]
        parent = heap_parent[heap_size]
        at = 0
        while True:
            below = 2 * at + 1
            if below >= heap_size:
                break
            if below + 1 < heap_size and heap[below + 1] > heap[below]:
                below += 1
            if heap[below] <= prob:
                break
            heap[at] = heap[below]
            heap_token[at] = heap_token[below]
            heap_parent[at] = heap_parent[below]
            at = below
        heap[at] = prob
        heap_token[at] = token
        heap_parent[at] = parent
    return out_token[:taken], out_parent[:taken], out_prob[:taken]
