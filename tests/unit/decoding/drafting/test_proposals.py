"""Proposals of several sources, merged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.decoding.drafting.nodes import Nodes, new_nodes
from pipeline.decoding.drafting.proposals import add_tree
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import DraftTree, chain, tree_from_lists

BUDGET = DraftBudget(4, 4)


def merged(*trees: DraftTree, budget: DraftBudget = BUDGET) -> Nodes:
    """The nodes of the trees of channels 0, 1, ..."""
    nodes = new_nodes(9, len(trees))
    for channel, tree in enumerate(trees):
        add_tree(nodes, channel, tree, budget, 50)
    return nodes


def test_equal_paths_are_one_node_and_conditional_probabilities_are_ratios_of_paths() -> None:
    first = tree_from_lists([1, 2, 3, 4], [-1, 0, 1, -1], [0.5, 0.25, 0.2, 0.125])
    second = DraftTree(np.asarray([4, 1, 8], np.int32), np.asarray([-1, 0, 1], np.int32), num_fixed=1)
    nodes = merged(first, second)
    records = nodes.records[1 : nodes.size[0]]
    assert records["token"].tolist() == [1, 2, 3, 4, 1, 8]
    assert records["parent"].tolist() == [0, 1, 2, 0, 4, 5]
    assert records["depth"].tolist() == [1, 2, 3, 1, 2, 3]
    assert records["fixed"].tolist() == [0, 0, 0, 1, 0, 0]
    probs = nodes.channel_probs[1 : nodes.size[0]]
    assert probs[:, 0].tolist() == pytest.approx([0.5, 0.5, 0.8, 0.125, 0, 0])
    assert probs[:, 1].tolist() == pytest.approx([0, 0, 0, *[0.67] * 3])


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize(("token", "probability"), [(50, 0.5), (-1, 0.5), (1, np.nan)])
def test_a_faulty_node_is_named(node: int, token: int, probability: float) -> None:
    tokens, probabilities = [3, 4], [0.5, 0.5]
    tokens[node], probabilities[node] = token, probability
    with pytest.raises(ValueError, match=f"draft node {node} has token {token}"):
        merged(tree_from_lists(tokens, [-1, -1], probabilities))


@pytest.mark.parametrize(("probabilities", "conditional"), [([0.5, 0.6], 1.0), ([0.0, 0.5], 1.0), ([0.5, 0.0], 1e-4)])
def test_conditional_probabilities_of_odd_estimates_are_bounded(probabilities: list[float], conditional: float) -> None:
    nodes = merged(tree_from_lists([1, 2], [-1, 0], probabilities))
    assert nodes.channel_probs[2, 0] == pytest.approx(conditional)


@pytest.mark.parametrize(("parents", "node"), [([-1, 1], 1), ([0, -1], 0), ([-1, -2], 1)])
def test_a_node_whose_parent_does_not_precede_it_is_named(parents: list[int], node: int) -> None:
    tree = DraftTree(np.asarray([1, 2], np.int32), np.asarray(parents, np.int32))
    with pytest.raises(ValueError, match=f"draft node {node} has token {node + 1} and parent {parents[node]}"):
        merged(tree)


def test_a_node_below_the_greatest_depth_is_named_and_a_window_may_be_deeper() -> None:
    tree, budget = chain([1, 2, 3]), DraftBudget(4, 2)
    with pytest.raises(ValueError, match="draft node 2 has token 3"):
        merged(chain([1, 2]), tree, budget=budget)
    with pytest.raises(ValueError, match="draft node 2 has token 3"):
        merged(replace(tree, num_fixed=2), budget=budget)
    assert merged(replace(tree, num_fixed=3), budget=budget).size[0] == 4
    assert merged(chain([1, 2]), budget=budget).size[0] == 3


def test_of_a_faulty_tree_nothing_is_merged() -> None:
    nodes = new_nodes(9, 1)
    with pytest.raises(ValueError, match="draft node 1 has token 50"):
        add_tree(nodes, 0, chain([1, 50]), DraftBudget(4, 4), 50)
    assert nodes.size[0] == 1
