"""Tables of int32 that describe the rows of a pass to the kernels.

A row attends to the cached tokens of its sequence, to its ancestors in its segment, and to itself. Row j is an ancestor
of row i, or i itself, if `FIRST[j] <= FIRST[i] < END[j]`. FIRST and END are the interval of a row's descendants in
depth-first order.

Attention computes tiles: up to a fixed number of rows of one segment, with the same keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.decoding.tree import IntArray
from pipeline.engine.torch.slots import Segment

# Columns of `rows`. PLACE: index in the slot where the row's keys are stored. SEEN: number of entries at the start of
# the slot that the rows of the tile may attend to.
TOKEN, SLOT, POSITION, PLACE, FIRST, END, SEEN, NUM_FIELDS = range(8)
# Columns of `tiles`. TILE_BEGIN, TILE_ROWS: first row and number of rows; 0 rows: nothing to compute. TILE_SEGMENT:
# first row of the segment. TILE_CACHED: number of its cached tokens.
TILE_BEGIN, TILE_ROWS, TILE_SEGMENT, TILE_CACHED, NUM_TILE_FIELDS = range(5)


@dataclass(frozen=True, slots=True)
class GpuPassTable:
    """rows: [rows, NUM_FIELDS]. wanted: rows whose logits are computed. tiles: [tiles, NUM_TILE_FIELDS]."""

    rows: IntArray
    wanted: IntArray
    tiles: IntArray


def table_of(segments: Sequence[Segment], wanted: IntArray, rows_per_tile: int) -> GpuPassTable:
    """The table of a pass over segments, without padding."""
    rows, tiles = [], []
    for each in segments:
        own = np.empty((each.length, NUM_FIELDS), np.int32)
        own[:, TOKEN] = each.token_ids
        own[:, SLOT] = each.slot.index
        own[:, POSITION] = each.positions
        own[:, PLACE] = np.arange(each.cached, each.cached + each.length)
        own[:, FIRST], own[:, END] = _intervals(each)
        for begin in range(0, each.length, rows_per_tile):
            size = min(rows_per_tile, each.length - begin)
            tiles.append((each.start + begin, size, each.start, each.cached))
            own[begin : begin + size, SEEN] = each.cached + begin + size  # rows come after those that they attend to
        rows.append(own)
    return GpuPassTable(np.concatenate(rows), wanted.astype(np.int32), np.asarray(tiles, np.int32))


def _intervals(segment: Segment) -> tuple[IntArray, IntArray]:
    """([length], [length]) FIRST and END of the rows of a segment. All nodes are below the pending tokens."""
    num_pending, parents = segment.num_pending, segment.tree.parents.tolist()
    sizes = [1] * len(parents)
    for node in range(len(parents) - 1, -1, -1):
        if parents[node] >= 0:
            sizes[parents[node]] += sizes[node]
    firsts: list[int] = []
    free = [num_pending]  # the next number below the root, then below each node
    for node, parent in enumerate(parents):
        firsts.append(free[parent + 1])
        free[parent + 1] += sizes[node]
        free.append(firsts[node] + 1)
    ends = [first + size for first, size in zip(firsts, sizes, strict=True)]
    return (
        np.asarray([*range(num_pending), *firsts], np.int32),
        np.asarray([segment.length] * num_pending + ends, np.int32),
    )
