"""Estimates the probabilities of the tokens after a context, in compiled loops.

The estimate is that of interpolated PPM. T tokens have followed a suffix of the context that a trie holds. The longest
suffix takes a part T / (T + S) of the probability, the next shorter suffix the same part of the rest, and so on:

    p(token) = sum over suffixes, longest first, of  rest so far * T / (T + S) * share of the token after the suffix

S, the escape count, is learned online (see `learning`), for each trie and order, with one or with several next tokens.
A suffix with the same count as the next longer one occurs at the same positions, and is skipped.
"""

from __future__ import annotations

from typing import NamedTuple

from pipeline.decoding.compiled import float32, int64, subkernel
from pipeline.decoding.tree import FloatArray, IntArray
from pipeline.decoding.trie.arrays import TrieArrays, slot_of
from pipeline.decoding.trie.suffixes import NUM_TRIES, TriePair, Workspace

# Classes of a suffix: with one next token, or with several.
NUM_CLASSES = 2
# Maximum number of children of a node that are read.
MAX_CHILDREN = 64
NO_SLOT = -1


class Evidence(NamedTuple):
    """Tokens that followed a suffix. total: their number. differ: 1 if there are different ones. node: the node whose
    children they are. slot: slot of the text that holds the only one, or NO_SLOT."""

    total: int
    differ: int
    node: int
    slot: int


NO_EVIDENCE = Evidence(0, 0, 0, NO_SLOT)


@subkernel
def evidence(trie: TrieArrays, work: Workspace, row: int, which: int, order: int) -> Evidence:
    """Evidence after the suffix of this order of a row's context. Empty if the suffix has the same count as the next
    longer one, which then has the same evidence."""
    longest, ends = work.longest[row, which], work.ends[row, which]
    if order > longest or not ends[order]:
        return NO_EVIDENCE
    node = int64(ends[order])
    count = int64(trie.nodes[node].count)
    if 0 < order < longest and trie.nodes[ends[order + 1]].count == count:
        return NO_EVIDENCE
    if order < trie.nodes[node].depth:
        slot = int64(slot_of(trie, trie.nodes[node].start + order))
        return Evidence(count if trie.text[slot] > 0 else 0, 0, node, slot)
    child = int64(trie.nodes[node].first_child)
    if not trie.nodes[child].next:  # one child, or none: row 0 has the count 0
        return Evidence(int64(trie.nodes[child].count), 0, node, NO_SLOT)
    return Evidence(count, 1, node, NO_SLOT)


@subkernel
def escape_index(work: Workspace, which: int, order: int, found: Evidence) -> int:
    """Index of a suffix's escape count."""
    return (which * work.ends.shape[2] + order) * NUM_CLASSES + found.differ


@subkernel
def next_tokens(
    pair: TriePair,
    work: Workspace,
    row: int,
    escape_counts: FloatArray,
    tokens: IntArray,
    probabilities: FloatArray,
    stop_below: float,
) -> int:
    """Fill `tokens` and `probabilities` [same length] with the possible next tokens of a row's context. Returns their
    number.

    Suffixes that cannot give any token a probability of `stop_below` are skipped. escape_counts: [tries * orders *
    NUM_CLASSES].
    """
    num_found = 0
    rest = float32(1.0)
    for order in range(max(int64(work.longest[row, 0]), int64(work.longest[row, 1])), -1, -1):
        for which in range(NUM_TRIES):
            trie = pair.tries[which]
            found = evidence(trie, work, row, which, order)
            if not found.total:
                continue
            escape_count = escape_counts[escape_index(work, which, order, found)]
            scale = rest / (float32(found.total) + escape_count)
            if found.slot != NO_SLOT:
                share = scale * float32(found.total)
                num_found = _add(tokens, probabilities, num_found, trie.text[found.slot] - 1, share)
            else:
                num_found = _add_children(trie, found, scale, stop_below, tokens, probabilities, num_found)
            rest *= escape_count / (float32(found.total) + escape_count)
            if rest < float32(3.0) * stop_below:
                return num_found
    return num_found


@subkernel
def _add_children(
    trie: TrieArrays,
    found: Evidence,
    scale: float,
    stop_below: float,
    tokens: IntArray,
    probabilities: FloatArray,
    num_found: int,
) -> int:
    """Add the children of a node to `tokens`. They are ordered by count, then by age."""
    child = int64(trie.nodes[found.node].first_child)
    left = MAX_CHILDREN
    while child and left:
        node = trie.nodes[child]
        share = scale * float32(node.count)
        if share < stop_below:
            break
        num_found = _add(tokens, probabilities, num_found, node.token, share)
        child = int64(node.next)
        left -= 1
    return num_found


@subkernel
def _add(tokens: IntArray, probabilities: FloatArray, num_found: int, token: int, share: float) -> int:
    """Add to the probability of a token. Returns the number of tokens. Ignores a new token if the arrays are full."""
    index = 0
    while index < num_found and tokens[index] != token:
        index += 1
    if index < num_found:
        probabilities[index] += share
    elif num_found < len(tokens):
        tokens[num_found] = token
        probabilities[num_found] = share
        num_found += 1
    return num_found
