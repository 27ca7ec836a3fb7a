"""Memory that the retrieval kernels work in, kept from call to call."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.decoding.tree import IntArray

NUM_TRIES = 2
MAX_CANDIDATES = 128


class Workspace(NamedTuple):
    """Addresses. Row 0 is the real context, row i + 1 that of draft node i.

    tokens, parents: [rows] the draft, parents as rows. places: [rows, tries, orders] where the suffix of so many tokens lies, as
    `kernels.locate` returns it. longest: [rows, tries] no longer suffix is known. matches, lengths: [rows, tries]
    place and length of the match (a context longer than a branch), or 0. seen: [tries]. path: [orders]. asked, weights, shares: [tries * (orders + 1)].
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


def new_workspace(num_rows: int, orders: int) -> tuple[IntArray, Workspace]:
    """The memory, which its user keeps alive, and the addresses in it."""
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
    return memory, Workspace(*starts.tolist(), orders)
