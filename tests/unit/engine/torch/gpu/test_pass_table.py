"""Tables of passes: who is above whom, and tiles that cover every row once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.decoding.tree import DraftTree
from pipeline.engine.torch.attention import segment_mask
from pipeline.engine.torch.gpu import pass_table
from pipeline.engine.torch.gpu.pass_table import table_of
from tests.unit.engine.torch.segments import draft_trees, segments_of


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), draft_trees(20, 30)), min_size=1, max_size=4),
    st.integers(1, 7),
)
def test_intervals_are_the_mask_and_tiles_cover_the_rows(
    shapes: list[tuple[int, int, DraftTree]], tile_rows: int
) -> None:
    segments = segments_of(shapes)

    table = table_of(segments, np.asarray([0]), tile_rows)

    for segment in segments:
        rows = table.rows[segment.start : segment.start + segment.length]
        first, end = rows[:, pass_table.FIRST], rows[:, pass_table.END]
        above = (first[None, :] <= first[:, None]) & (first[:, None] < end[None, :])
        np.testing.assert_array_equal(above, segment_mask(segment)[:, segment.cached :])
        assert rows[:, pass_table.TOKEN].tolist() == segment.token_ids.tolist()
        assert (rows[:, pass_table.SLOT] == segment.slot.index).all()
    covered: list[int] = []
    for begin, num_rows, start, cached in table.tiles.tolist():
        tile = range(begin, begin + num_rows)
        covered += tile
        assert 0 < num_rows <= tile_rows
        # A tile sees its own rows, and all that these may see.
        assert (table.rows[tile, pass_table.SEEN] == cached + tile[-1] - start + 1).all()
    assert covered == list(range(len(table.rows)))
