"""Which rows of a pass are about which depth of the next tree."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.decoding.drafting.recent_rows import EVERY, NO_RECENT_ROWS, NONE, recent_rows
from pipeline.decoding.request import StepResult
from pipeline.decoding.tree import path_to, tree_from_lists


def test_marks_are_no_depths() -> None:
    assert max(EVERY, NONE) < 1


@given(st.data())
def test_a_row_after_a_rejected_node_is_about_the_next_position(data: st.DataObject) -> None:
    parents = [data.draw(st.integers(-1, node - 1)) for node in range(data.draw(st.integers(0, 12)))]
    tree = tree_from_lists(list(range(len(parents))), parents)
    last = data.draw(st.integers(-1, len(tree) - 1))
    accepted = path_to(tree, last)
    ids, probs = np.zeros((len(tree) + 1, 2), np.int32), np.full((len(tree) + 1, 2), 0.5, np.float32)
    context = np.asarray([5, 6, 7], np.int32)
    tokens = [*tree.token_ids[accepted].tolist(), 9]
    found = recent_rows(StepResult(context, tree, accepted, tokens, None, ids, probs), np.asarray(accepted, np.int32))

    assert np.shares_memory(found.ids, ids)
    assert np.shares_memory(found.probs, probs)
    assert len(found.depths) == len(tree) + 1
    new_root = len(context) + len(tokens) - 1
    for node in range(-1, len(tree)):
        about = len(context) + len(path_to(tree, node))  # position of the tokens that the node's row names
        if node == last:
            assert found.depths[node + 1] == EVERY
        else:
            assert found.depths[node + 1] == (about - new_root if about > new_root else NONE)


def test_a_target_without_candidates_gives_no_rows() -> None:
    assert not any(map(len, NO_RECENT_ROWS))
    tree = tree_from_lists([3], [-1])
    assert recent_rows(StepResult(np.asarray([1], np.int32), tree, [], [4]), np.empty(0, np.int32)) is NO_RECENT_ROWS
