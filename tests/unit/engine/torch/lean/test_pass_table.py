"""Rows of a pass: positions, places, and runs that lead from a row to its ancestors."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.decoding.tree import DraftTree, path_to, tree_from_lists
from pipeline.engine.torch.lean import tables
from pipeline.engine.torch.lean.pass_table import table_of
from tests.unit.engine.torch.segments import draft_trees, segments_of


def test_runs_lead_from_a_row_to_its_ancestors() -> None:
    #  two pending tokens, then nodes 0 and 1 below the last one, node 2 below node 1, node 3 below node 0
    tree = tree_from_lists([5, 6, 7, 8], [-1, -1, 1, 0])
    rows = table_of(segments_of([(10, 2, tree)]), 1, 1, 1).rows
    assert rows[:, tables.ROW_RUN].tolist() == [0, 0, 0, 3, 3, 5]
    assert rows[:, tables.ROW_ABOVE].tolist() == [-1, -1, -1, 1, 1, 2]
    assert rows[:, tables.ROW_POSITION].tolist() == [10, 11, 12, 12, 13, 13]
    assert rows[:, tables.ROW_PLACE].tolist() == [10, 11, 12, 13, 14, 15]


SHAPES = st.tuples(st.integers(0, 9), st.integers(1, 5), draft_trees(12, 9))


@given(st.lists(SHAPES, min_size=1, max_size=3))
def test_rows_of_several_sequences(entries: list[tuple[int, int, DraftTree]]) -> None:
    segments = segments_of(entries)
    table = table_of(segments, 3, 2, 2)
    assert table.token_ids.tolist() == [token for each in segments for token in each.token_ids.tolist()]
    for each in segments:
        rows = table.rows[each.start : each.start + each.length]
        assert rows[:, tables.ROW_POSITION].tolist() == each.positions.tolist()
        assert (rows[:, tables.ROW_SLOT] == each.slot.index).all()
        for index, row in enumerate(rows.tolist()):
            found, last = set(), index
            while last >= 0:
                found |= set(range(rows[last, tables.ROW_RUN], last + 1))
                last = int(rows[last, tables.ROW_ABOVE])
            node = index - each.num_pending
            above = path_to(each.tree, node) if node >= 0 else []
            pending = range(each.num_pending if node >= 0 else index + 1)
            assert found == {*pending, *(each.num_pending + other for other in above)}, (index, row)
