"""Proposals of several sources: joined to one list, and found again in the verified tree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.decoding.drafting.proposals import UNKNOWN_PROBABILITY, joined_proposals, places_in, unsent_nodes
from pipeline.decoding.request import StepResult
from pipeline.decoding.tree import DraftTree, path_to, select_nodes, tree_from_lists


def test_conditional_probabilities_are_ratios_of_paths() -> None:
    own: dict[int, slice] = {}
    first = tree_from_lists([1, 2, 3, 4], [-1, 0, 1, -1], [0.5, 0.25, 0.2, 0.125])
    second = DraftTree(np.asarray([7, 8], np.int32), np.asarray([-1, 0], np.int32), num_fixed=1)
    joined = joined_proposals([(0, first), (2, second)], own)
    assert own == {0: slice(0, 4), 2: slice(4, 6)}
    assert joined.token_ids.tolist() == [1, 2, 3, 4, 7, 8]
    assert joined.parents.tolist() == [-1, 0, 1, -1, -1, 4]
    assert joined.channels.tolist() == [0, 0, 0, 0, 2, 2]
    assert joined.fixed.tolist() == [False] * 4 + [True, False]
    unknown = [UNKNOWN_PROBABILITY] * 2
    assert joined.conditionals.tolist() == pytest.approx([0.5, 0.5, 0.8, 0.125, *unknown])


@pytest.mark.parametrize(("probabilities", "conditional"), [([0.5, 0.6], 1.0), ([0.0, 0.5], 1.0), ([0.5, 0.0], 1e-4)])
def test_conditional_probabilities_of_odd_estimates_are_bounded(probabilities: list[float], conditional: float) -> None:
    joined = joined_proposals([(0, tree_from_lists([1, 2], [-1, 0], probabilities))], {})
    assert joined.conditionals[1] == pytest.approx(conditional)


@st.composite
def trees_and_choices(draw: st.DrawFn) -> tuple[DraftTree, np.ndarray]:
    """A tree whose siblings have different tokens, and nodes to keep."""
    size = draw(st.integers(1, 12))
    parents = [draw(st.integers(-1, node - 1)) for node in range(size)]
    tokens = [draw(st.integers(0, 2)) * 16 + node for node in range(size)]
    keep = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    return tree_from_lists(tokens, parents), np.asarray(keep)


@settings(deadline=None)
@given(trees_and_choices())
def test_a_proposed_node_is_found_by_its_path(drawn: tuple[DraftTree, np.ndarray]) -> None:
    proposed, keep = drawn
    verified = select_nodes(proposed, keep)
    places = places_in(proposed, verified).tolist()
    assert places_in(proposed, proposed).tolist() == list(range(len(proposed)))
    for node, place in enumerate(places):
        path = path_to(proposed, node)
        if not keep[path].all():
            assert place == -1
        else:
            expected = [int(proposed.token_ids[each]) for each in path]
            assert [int(verified.token_ids[each]) for each in path_to(verified, place)] == expected


def step(nodes: list[int], token_ids: list[int]) -> StepResult:
    #  0 "1" - 1 "2" - 2 "2"
    #        - 3 "4" - 4 "5"
    tree = tree_from_lists([1, 2, 2, 4, 5], [-1, 0, 1, 0, 3])
    return StepResult(np.zeros(1, np.int32), tree, nodes, token_ids, None, None, None)


@pytest.mark.parametrize(
    ("nodes", "token_ids", "unsent"),
    [
        ([0], [1, 4], [3, 4]),  # correct, and left out by the planner of the engine
        ([0], [1, 9], []),
        ([], [1], [0, 1, 2, 3, 4]),
        ([0, 1], [1, 2], []),  # cut at the end of the output: the last token is that of a node
        ([0, 3, 4], [1, 4, 5, 6], []),
    ],
)
def test_a_correct_node_that_was_not_verified(nodes: list[int], token_ids: list[int], unsent: list[int]) -> None:
    assert unsent_nodes(step(nodes, token_ids)).tolist() == unsent
