"""Proposals of several sources, joined to one list."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.decoding.drafting.proposals import UNKNOWN_PROBABILITY, Proposals, add_tree, new_proposals
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import DraftTree, chain, tree_from_lists


def joined_proposals(trees: list[tuple[int, DraftTree]]) -> Proposals:
    proposals, size = new_proposals(8), 0
    for channel, tree in trees:
        size = add_tree(proposals, size, channel, tree, DraftBudget(4, 4), 50)
    return Proposals(*(array[:size] for array in proposals))


def test_conditional_probabilities_are_ratios_of_paths() -> None:
    first = tree_from_lists([1, 2, 3, 4], [-1, 0, 1, -1], [0.5, 0.25, 0.2, 0.125])
    second = DraftTree(np.asarray([7, 8], np.int32), np.asarray([-1, 0], np.int32), num_fixed=1)
    joined = joined_proposals([(0, first), (2, second)])
    assert joined.token_ids.tolist() == [1, 2, 3, 4, 7, 8]
    assert joined.parents.tolist() == [-1, 0, 1, -1, -1, 4]
    assert joined.channels.tolist() == [0, 0, 0, 0, 2, 2]
    assert joined.fixed.tolist() == [False] * 4 + [True, False]
    unknown = [UNKNOWN_PROBABILITY] * 2
    assert joined.conditionals.tolist() == pytest.approx([0.5, 0.5, 0.8, 0.125, *unknown])


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize(("token", "probability"), [(50, 0.5), (-1, 0.5), (1, np.nan)])
def test_a_faulty_node_is_named(node: int, token: int, probability: float) -> None:
    tokens, probabilities = [3, 4], [0.5, 0.5]
    tokens[node], probabilities[node] = token, probability
    with pytest.raises(ValueError, match=f"draft node {node} has token {token}"):
        joined_proposals([(0, tree_from_lists(tokens, [-1, -1], probabilities))])


@pytest.mark.parametrize(("probabilities", "conditional"), [([0.5, 0.6], 1.0), ([0.0, 0.5], 1.0), ([0.5, 0.0], 1e-4)])
def test_conditional_probabilities_of_odd_estimates_are_bounded(probabilities: list[float], conditional: float) -> None:
    joined = joined_proposals([(0, tree_from_lists([1, 2], [-1, 0], probabilities))])
    assert joined.conditionals[1] == pytest.approx(conditional)


@pytest.mark.parametrize(("parents", "node"), [([-1, 1], 1), ([0, -1], 0), ([-1, -2], 1)])
def test_a_node_whose_parent_does_not_precede_it_is_named(parents: list[int], node: int) -> None:
    tree = DraftTree(np.asarray([1, 2], np.int32), np.asarray(parents, np.int32))
    with pytest.raises(ValueError, match=f"draft node {node} has token {node + 1} and parent {parents[node]}"):
        joined_proposals([(0, tree)])


def test_a_node_below_the_greatest_depth_is_named_and_a_window_may_be_deeper() -> None:
    tree, budget = chain([1, 2, 3]), DraftBudget(4, 2)
    with pytest.raises(ValueError, match="draft node 2 has token 3"):
        add_tree(new_proposals(8), 0, 0, tree, budget, 50)
    assert add_tree(new_proposals(8), 0, 0, replace(tree, num_fixed=3), budget, 50) == 3
    assert add_tree(new_proposals(8), 0, 0, chain([1, 2]), budget, 50) == 2
