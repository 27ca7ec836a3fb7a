"""Drafts from the client: a prediction is followed through changes, a tree is drafted once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config.schema import SuppliedDraftConfig
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.sources.supplied import SuppliedSource
from pipeline.decoding.tree import check_tree, tree_from_lists

BUDGET = DraftBudget(4, 4)
PROMPT = [100, 101]


def predicting(prediction: list[int]) -> SuppliedSource:
    source = SuppliedSource(SuppliedDraftConfig())
    source.start("r", np.asarray(PROMPT, np.int32), "")
    source.predict("r", np.asarray(prediction, np.int32))
    return source


def proposed(source: SuppliedSource, output: list[int], budget: DraftBudget = BUDGET) -> list[int]:
    tree = source.propose("r", np.asarray(PROMPT + output, np.int32), budget)
    check_tree(tree)
    assert tree.parents.tolist() == list(range(-1, len(tree) - 1))
    return tree.token_ids.tolist()


def test_a_prediction_is_offered_from_where_the_output_is() -> None:
    source = predicting([1, 2, 3, 4, 5, 6, 7])
    assert proposed(source, []) == [1, 2, 3, 4]
    assert proposed(source, [1, 2]) == [3, 4, 5, 6]
    assert proposed(source, [1, 2, 3, 4, 5, 6]) == [7]
    assert proposed(source, [1, 2, 3, 4, 5, 6, 7]) == []


def test_it_is_picked_up_again_after_an_insertion_and_a_deletion() -> None:
    source = predicting([1, 2, 3, 4, 5, 6, 7])
    assert proposed(source, [1, 2, 90, 91]) == []
    assert proposed(source, [1, 2, 90, 91, 3]) == [4, 5, 6, 7]
    assert proposed(source, [1, 2, 90, 91, 3, 6]) == [7]


def test_the_longest_match_counts_then_the_nearest() -> None:
    source = predicting([1, 2, 3, 9, 2, 4, 9, 2, 5])
    assert proposed(source, [9, 2], DraftBudget(1, 1)) == [4]
    assert proposed(source, [9, 2, 4, 9, 2], DraftBudget(1, 1)) == [5]
    assert proposed(source, [1, 2], DraftBudget(1, 1)) == [3]


def test_budget_bounds_nodes_and_depth() -> None:
    source = predicting(list(range(20)))
    assert proposed(source, [], DraftBudget(9, 3)) == [0, 1, 2]
    assert proposed(source, [], DraftBudget(2, 3)) == [0, 1]


def test_a_supplied_tree_is_offered_once_and_cut_to_the_budget() -> None:
    source = predicting([])
    tree = tree_from_lists([1, 2, 3, 4, 5, 6], [-1, -1, 0, 0, 2, 4])
    source.supply("r", tree)
    offered = source.propose("r", np.asarray(PROMPT, np.int32), DraftBudget(5, 3))
    assert offered.token_ids.tolist() == [1, 2, 3, 4, 5]
    assert not len(source.propose("r", np.asarray(PROMPT, np.int32), BUDGET))


def test_stop_twice_does_nothing() -> None:
    source = predicting([1])
    source.start("other", np.asarray(PROMPT, np.int32), "")
    source.predict("other", np.asarray([2, 3], np.int32))
    for _ in range(2):
        source.stop("r")
        with pytest.raises(KeyError):
            source.propose("r", np.asarray(PROMPT, np.int32), BUDGET)
    assert source.propose("other", np.asarray(PROMPT, np.int32), BUDGET).token_ids.tolist() == [2, 3]


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=30), st.lists(st.integers(0, 3), max_size=30))
def test_what_is_offered_follows_the_last_token_in_the_prediction(prediction: list[int], output: list[int]) -> None:
    offered = proposed(predicting(prediction), output)
    behind = [
        prediction[place : place + 4]
        for place in range(len(prediction))
        if not output or (place and prediction[place - 1] == output[-1])
    ]
    assert not offered or offered in behind
