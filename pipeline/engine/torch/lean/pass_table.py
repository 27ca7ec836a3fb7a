"""Tables of one pass: its token ids, its rows and its segments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pipeline.decoding.tree import IntArray, read_only
from pipeline.engine.torch.lean import tables
from pipeline.engine.torch.lean.attention import NUM_SEGMENT_FIELDS
from pipeline.engine.torch.lean.attention_tasks import task_rows
from pipeline.engine.torch.lean.compilation import kernel
from pipeline.engine.torch.lean.tables import Longs
from pipeline.engine.torch.slots import Segment


class LeanPassTable(NamedTuple):
    """token_ids: [rows]. rows: [rows, NUM_ROW_FIELDS] see `tables`. segments: see `attention.attend`."""

    token_ids: IntArray
    rows: Longs
    segments: Longs


def table_of(segments: Sequence[Segment], group: int, num_kv_heads: int, num_threads: int) -> LeanPassTable:
    """The table of a pass. group: query heads per key head."""
    num_rows = segments[-1].start + segments[-1].length
    table = LeanPassTable(
        np.empty(num_rows, np.int32),
        np.empty((num_rows, tables.NUM_ROW_FIELDS), np.int64),
        np.zeros((len(segments) + 1, NUM_SEGMENT_FIELDS), np.int64),
    )
    num_tasks = 0
    for number, each in enumerate(segments):
        size = task_rows(each.length, group, num_kv_heads, num_threads)
        table.segments[number] = each.start, each.length, each.cached, each.slot.index, size, num_tasks
        num_tasks += -(-each.length // size) * num_kv_heads
        pending = each.slot.tokens[each.cached : each.cached + each.num_pending]
        drafts, parents = (
            read_only(np.ascontiguousarray(values, np.int32)) for values in (each.tree.token_ids, each.tree.parents)
        )
        _fill(table.token_ids, table.rows, each.start, each.slot.index, each.cached, pending, drafts, parents)
    table.segments[-1, -1] = num_tasks
    return table


@kernel
def _fill(
    token_ids: IntArray,
    rows: Longs,
    start: int,
    slot: int,
    cached: int,
    pending: IntArray,
    drafts: IntArray,
    parents: IntArray,
) -> None:
    """Fill the rows of a segment. Pending tokens follow each other and the cache."""
    num_pending = len(pending)
    for index in range(num_pending + len(drafts)):
        row = rows[start + index]
        row[tables.ROW_SLOT], row[tables.ROW_PLACE] = slot, cached + index
        if index < num_pending:
            token_ids[start + index] = pending[index]
            row[tables.ROW_POSITION], row[tables.ROW_RUN], row[tables.ROW_ABOVE] = cached + index, 0, -1
            continue
        node = index - num_pending
        token_ids[start + index] = drafts[node]
        above = num_pending - 1 if parents[node] < 0 else num_pending + parents[node]
        row[tables.ROW_POSITION] = rows[start + above, tables.ROW_POSITION] + 1
        if above == index - 1:
            row[tables.ROW_RUN] = rows[start + above, tables.ROW_RUN]
            row[tables.ROW_ABOVE] = rows[start + above, tables.ROW_ABOVE]
        else:
            row[tables.ROW_RUN], row[tables.ROW_ABOVE] = index, above
