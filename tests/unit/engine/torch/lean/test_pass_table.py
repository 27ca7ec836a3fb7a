"""Rows of a pass: positions, places, and runs that lead from a row to its ancestors."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.decoding.tree import DraftTree, path_to, tree_from_lists
from pipeline.engine.torch.lean import tables
from pipeline.engine.torch.lean.pass_table import table_of
from pipeline.engine.torch.slots import Segment, Slot


def segment_of(slot: int, start: int, cached: int, num_pending: int, tree: DraftTree) -> Segment:
    tokens = np.arange(100, 100 + cached + num_pending, dtype=np.int32)
    return Segment(Slot(slot, tokens, len(tokens), cached), tree, start, cached, num_pending)


def test_runs_lead_from_a_row_to_its_ancestors() -> None:
    #  two pending tokens, then nodes 0 and 1 below the last one, node 2 below node 1, node 3 below node 0
    tree = tree_from_lists([5, 6, 7, 8], [-1, -1, 1, 0])
    rows = table_of([segment_of(3, 0, 10, 2, tree)], 1, 1, 1).rows
    assert rows[:, tables.ROW_RUN].tolist() == [0, 0, 0, 3, 3, 5]
    assert rows[:, tables.ROW_ABOVE].tolist() == [-1, -1, -1, 1, 1, 2]
    assert rows[:, tables.ROW_POSITION].tolist() == [10, 11, 12, 12, 13, 13]
    assert rows[:, tables.ROW_PLACE].tolist() == [10, 11, 12, 13, 14, 15]
    assert rows[:, tables.ROW_SLOT].tolist() == [3] * 6


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, int, DraftTree]:
    parents = [draw(st.integers(-1, node - 1)) for node in range(draw(st.integers(0, 12)))]
    return draw(st.integers(0, 9)), draw(st.integers(1, 5)), tree_from_lists([7] * len(parents), parents)


@given(st.lists(shapes(), min_size=1, max_size=3))
def test_rows_of_several_sequences(entries: list[tuple[int, int, DraftTree]]) -> None:
    segments: list[Segment] = []
    for slot, (cached, num_pending, tree) in enumerate(entries):
        start = segments[-1].start + segments[-1].length if segments else 0
        segments.append(segment_of(slot, start, cached, num_pending, tree))
    table = table_of(segments, 3, 2, 2)
    assert table.token_ids.tolist() == [token for each in segments for token in each.token_ids.tolist()]
    for each in segments:
        rows = table.rows[each.start : each.start + each.length]
        assert rows[:, tables.ROW_POSITION].tolist() == each.positions.tolist()
        for index, row in enumerate(rows.tolist()):
            found, last = set(), index
            while last >= 0:
                found |= set(range(rows[last, tables.ROW_RUN], last + 1))
                last = int(rows[last, tables.ROW_ABOVE])
            node = index - each.num_pending
            above = path_to(each.tree, node) if node >= 0 else []
            pending = range(each.num_pending if node >= 0 else index + 1)
            assert found == {*pending, *(each.num_pending + other for other in above)}, (index, row)
