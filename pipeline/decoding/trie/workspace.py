"""Memory that the retrieval kernels work in, kept from call to call."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.decoding.compiled import compiled
from pipeline.decoding.tree import IntArray
from pipeline.decoding.trie.layout import LongArray

NUM_TRIES = 2
MAX_CANDIDATES = 128


class Workspace(NamedTuple):
    """Addresses. Row 0 is the real context, row i + 1 that of draft node i.

    tokens, parents: [rows] the draft, parents as rows. places: [rows, tries, orders] where the suffix of so many
    tokens lies, as `nodes.locate` returns it, or UNKNOWN. longest: [rows, tries] no longer suffix is known.
    matches, lengths: [rows, tries] place and length of the match (a context longer than a branch), or 0. seen:
    [tries]. path: [orders + 1]. asked, weights, shares: [tries * (orders + 1)].
    """

    tokens: int
    parents: int
    places: int
    longest: int
    matches: int
    lengths: int
    seen: int
    path: int
    asked: int
    weights: int
    shares: int
    orders: int


@compiled
def workspace_from(numbers: LongArray) -> Workspace:
    """The workspace whose fields were handed over in an array, which is faster than as a tuple."""
    return Workspace(
        numbers[0],
        numbers[1],
        numbers[2],
        numbers[3],
        numbers[4],
        numbers[5],
        numbers[6],
        numbers[7],
        numbers[8],
        numbers[9],
        numbers[10],
        numbers[11],
    )


def new_workspace(num_rows: int, orders: int) -> tuple[IntArray, LongArray]:
    """The memory, which its user keeps alive, and the fields of the `Workspace` in it."""
    asked = NUM_TRIES * (orders + 1) + 1
    sizes = (
        num_rows,
        num_rows,
        num_rows * NUM_TRIES * orders,
        num_rows * NUM_TRIES,
        num_rows * NUM_TRIES,
        num_rows * NUM_TRIES,
        NUM_TRIES,
        orders + 1,
        asked,
        asked,
        asked,
    )
    memory = np.zeros(sum(sizes), np.int32)
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1])) * memory.itemsize + memory.ctypes.data
    return memory, np.asarray([*starts.tolist(), orders], np.int64)
