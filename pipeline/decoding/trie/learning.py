"""Learns the escape counts S of `next_tokens` by gradient ascent in log S on the log probability of observed tokens."""

from __future__ import annotations

import numpy as np

from pipeline.decoding.compiled import Plain, float32, int64, kernel, subkernel
from pipeline.decoding.tree import FloatArray, IntArray
from pipeline.decoding.trie.next_tokens import NO_SLOT, escape_index, evidence
from pipeline.decoding.trie.nodes import find_child
from pipeline.decoding.trie.suffixes import NUM_TRIES, TriePair, Workspace, extend_context, find_context, pair_of

# Least probability of a token that follows no suffix, and of any token; bounds of the learned escape counts.
LEAST_SHARE = float32(1e-6)
LEAST_BELIEF = float32(1e-30)
LEAST_ESCAPE, MOST_ESCAPE = float32(0.0067), float32(148.0)


@kernel
def learn_tokens(
    pair_arrays: Plain,
    work_arrays: Plain,
    context: IntArray,
    tokens: IntArray,
    escape_counts: FloatArray,
    rate: float,
) -> None:
    """Learn from tokens [n] that followed context [len], before they are inserted. The workspace must have at least n
    rows. escape_counts: see `next_tokens`; changed in place."""
    pair, work = pair_of(pair_arrays), Workspace(*work_arrays)
    find_context(pair, work, context)
    for index in range(len(tokens)):
        if index:
            extend_context(pair, work, index, index - 1, tokens[index - 1])
        _learn_token(pair, work, index, escape_counts, tokens[index], rate)


@subkernel
def _learn_token(pair: TriePair, work: Workspace, row: int, escape_counts: FloatArray, token: int, rate: float) -> None:
    """One step of gradient ascent on the log probability of `token` after a row's context."""
    num = 0
    for order in range(max(int64(work.longest[row, 0]), int64(work.longest[row, 1])), -1, -1):
        for which in range(NUM_TRIES):
            trie = pair.tries[which]
            found = evidence(trie, work, row, which, order)
            if not found.total:
                continue
            share = float32(0.0)
            if found.slot != NO_SLOT:
                share = float32(trie.text[found.slot] == token + 1)
            else:
                child = find_child(trie, found.node, token)
                if child:
                    share = float32(trie.nodes[child].count) / float32(found.total)
            index = escape_index(work, which, order, found)
            work.indices[num] = index
            work.weights[num] = found.total / (found.total + escape_counts[index])
            work.shares[num] = share
            num += 1
    # p = weight * share + (1 - weight) * p of the shorter suffixes, from the shortest up. `shares` then holds the
    # derivative of p by the weight, which is share - p of the shorter suffixes.
    p = LEAST_SHARE
    for index in range(num - 1, -1, -1):
        weight, share = work.weights[index], work.shares[index]
        work.shares[index] = share - p
        # Bounded below, because p divides, and would become 0 if many suffixes were confident and wrong.
        p = max(weight * share + (float32(1.0) - weight) * p, LEAST_BELIEF)
    # d weight / d log S = -weight * (1 - weight). An index contributes in proportion to the escape of the longer ones.
    rest = float32(1.0)
    for index in range(num):
        weight = work.weights[index]
        slope = -rest * work.shares[index] * weight * (float32(1.0) - weight) / p
        escape = work.indices[index]
        escape_counts[escape] = min(
            max(escape_counts[escape] * np.exp(float32(rate * slope)), LEAST_ESCAPE), MOST_ESCAPE
        )
        rest *= float32(1.0) - weight
