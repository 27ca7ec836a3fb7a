"""A bounded table from the last few tokens to the target's most probable next tokens.

Each row belongs to one *order* n. Its key is a hash of the last n tokens. Its value is the k most probable next tokens
with their probabilities, averaged over the target's results after these n tokens with more weight on recent ones. Rows
are direct-mapped: a new key replaces an older one in the same slot, so memory never grows.

    orders = 3      order 1: "mat"          -> [".", ",", "and", ...]
                    order 2: "the mat"      -> ["was", ".", ...]
                    order 3: "on the mat"   -> [".", ",", ...]
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.decoding.compiled import Plain, compiled, inlined
from pipeline.decoding.tree import FloatArray, IntArray

# Weight of a row's old probabilities when new ones are stored. With 0, 0.35 and 0.6 a step of the hybrid tree yielded
# 3.55, 3.63 and 3.53 tokens (28 prompts, 64 nodes, model in the loop), so the value matters little.
MEMORY = np.float32(0.35)

KeyArray = npt.NDArray[np.uint64]


class ContinuationTable(NamedTuple):
    """The rows of all orders. keys: [orders, capacity], 0 for empty rows. ids: [orders, capacity, k] next tokens, -1
    after the last one. probs: [orders, capacity, k] their probabilities."""

    keys: KeyArray
    ids: IntArray
    probs: FloatArray


def empty_table(orders: int, capacity: int, k: int) -> ContinuationTable:
    """An empty table. capacity: rows per order, a power of two."""
    return ContinuationTable(
        np.zeros((orders, capacity), np.uint64),
        np.full((orders, capacity, k), -1, np.int32),
        np.zeros((orders, capacity, k), np.float32),
    )


def namespace_key(namespace: str) -> np.uint64:
    """The key of the empty context in a namespace. It differs between namespaces, so that none reads another's rows."""
    return np.uint64(int.from_bytes(hashlib.blake2b(namespace.encode(), digest_size=8).digest(), "little"))


@compiled
def extend_key(key: np.uint64, token: int) -> np.uint64:
    """The key of a context extended by one token to the left."""
    mixed = (key ^ np.uint64(token + 1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    return mixed | np.uint64(1)  # never 0, which marks an empty row


@compiled
def slot_of(key: np.uint64, capacity: int) -> int:
    """The slot of a key, the same in every order."""
    return int((key >> np.uint64(20)) & np.uint64(capacity - 1))


@inlined
def last_tokens(token_ids: IntArray, parents: IntArray, node: int, root: int, context: IntArray, last: IntArray) -> int:
    """Fill `last` [orders] with the tokens that end at a node of a tree below `context` [len], latest first. root: the
    index that stands for the end of the context; nodes have larger ones. Returns the number of tokens."""
    filled = 0
    while filled < len(last) and node > root:
        last[filled] = token_ids[node]
        node = parents[node]
        filled += 1
    back = len(context) - 1
    while filled < len(last) and back >= 0:
        last[filled] = context[back]
        back -= 1
        filled += 1
    return filled


@compiled
def store(table: ContinuationTable, key: np.uint64, last: IntArray, ids: IntArray, probs: FloatArray) -> None:
    """Store under every order that `ids` [k] with `probs` [k] may follow the tokens `last` [len], latest
    first; -1 ends the list early. key: `namespace_key` of the request."""
    width = table.ids.shape[2]
    num_new = 0
    while num_new < min(width, len(ids)) and ids[num_new] >= 0:
        num_new += 1
    if not num_new:
        return
    tokens = np.empty(2 * width, np.int32)
    weights = np.empty(2 * width, np.float32)
    for order in range(min(table.keys.shape[0], len(last))):
        key = extend_key(key, last[order])
        slot = slot_of(key, table.keys.shape[1])
        known = table.keys[order, slot] == key
        table.keys[order, slot] = key
        size = num_new
        for index in range(num_new):
            tokens[index] = ids[index]
            weights[index] = probs[index] * (1.0 - MEMORY if known else 1.0)
        for old in range(width if known else 0):
            if table.ids[order, slot, old] < 0:
                break
            index = 0
            while index < size and tokens[index] != table.ids[order, slot, old]:
                index += 1
            if index == size:
                tokens[size] = table.ids[order, slot, old]
                weights[size] = 0.0
                size += 1
            weights[index] += MEMORY * table.probs[order, slot, old]
        for rank in range(width):
            if rank >= size:
                table.ids[order, slot, rank] = -1
                continue
            best = rank
            for index in range(rank + 1, size):
                if weights[index] > weights[best]:
                    best = index
            table.ids[order, slot, rank] = tokens[best]
            table.probs[order, slot, rank] = weights[best]
            tokens[best], weights[best] = tokens[rank], weights[rank]


@compiled
def store_step(
    table_arrays: Plain,
    key: np.uint64,
    context: IntArray,
    token_ids: IntArray,
    parents: IntArray,
    path: IntArray,
    ids: IntArray,
    probs: FloatArray,
) -> None:
    """Store every row of a verify step. path: accepted nodes. ids, probs: [n + 1, k], row 0 after `context`, row i + 1
    after node i of the tree (token_ids, parents). Rows of accepted nodes are stored last, so they outweigh others with
    the same key."""
    table = ContinuationTable(*table_arrays)
    accepted = np.zeros(len(token_ids), np.bool_)
    for node in path:
        accepted[node] = True
    last = np.empty(table.keys.shape[0], np.int32)
    for wanted in (False, True):
        for row in range(len(token_ids) + 1):
            if (row == 0 or accepted[row - 1]) != wanted:
                continue
            known = last_tokens(token_ids, parents, row - 1, -1, context, last)
            store(table, key, last[:known], ids[row], probs[row])
