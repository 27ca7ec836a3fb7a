"""Learning from a step: proposed nodes are found in the verified tree, and their outcome corrects the estimates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.decoding.drafting.calibration import Calibration, first_calibration
from pipeline.decoding.drafting.growth import Grown
from pipeline.decoding.drafting.learning import learn_from_step, outcome_of
from pipeline.decoding.drafting.mixing import Mix, mixed_probability
from pipeline.decoding.request import StepResult
from pipeline.decoding.tree import EMPTY_TREE, DraftTree, find_nodes, path_to, select_nodes, tree_from_lists

CONTEXT = np.zeros(1, np.int32)


def mix_of_one_channel() -> Mix:
    weights = np.tile(np.asarray([0.8, 1.0, -0.5], np.float32), (2, 2, 1))
    return Mix(weights, np.zeros((*weights.shape, 0), np.float32), np.zeros(0, np.float32))


def grown_of(tree: DraftTree) -> Grown:
    """A grown tree whose nodes one channel names with a probability of 0.4 each."""
    size = len(tree)
    words = np.full((size, 1), 0.4, np.float32)
    estimates, orders, noise = np.full(size, 0.5, np.float32), np.zeros(size, np.int32), np.zeros(size, np.float32)
    return Grown(tree.token_ids, tree.parents, estimates, estimates, orders, orders, words, orders, noise, 0)


def learn(mix: Mix, tree: DraftTree, verified: DraftTree, nodes: list[int], tokens: list[int]) -> Calibration:
    calibration, step = first_calibration(1), StepResult(CONTEXT, verified, nodes, tokens)
    learn_from_step(mix, calibration, grown_of(tree), step, np.asarray(nodes, np.int32))
    return calibration


def outcome(
    proposed: DraftTree, verified: DraftTree, nodes: list[int], token: int = -1
) -> tuple[list[bool], list[bool]]:
    """Which proposed nodes are known, and which accepted."""
    trees = proposed.token_ids, proposed.parents, verified.token_ids, verified.parents
    found = outcome_of(*trees, np.asarray(nodes, np.int32), token)
    return found.known.tolist(), found.accepted.tolist()


@st.composite
def trees_and_choices(draw: st.DrawFn) -> tuple[DraftTree, np.ndarray]:
    """A tree whose siblings have different tokens, and nodes to keep."""
    size = draw(st.integers(1, 12))
    parents = [draw(st.integers(-1, node - 1)) for node in range(size)]
    tokens = [draw(st.integers(0, 2)) * 16 + node for node in range(size)]
    keep = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    return tree_from_lists(tokens, parents), np.asarray(keep)


@settings(deadline=None)
@given(trees_and_choices(), st.data())
def test_a_proposed_node_is_found_by_its_path(drawn: tuple[DraftTree, np.ndarray], data: st.DataObject) -> None:
    proposed, keep = drawn
    verified = select_nodes(proposed, keep)
    accepted = path_to(verified, data.draw(st.integers(-1, len(verified) - 1)))
    known, are_accepted = outcome(proposed, verified, accepted)
    nodes = find_nodes(proposed, verified)
    assert known == [bool(keep[path_to(proposed, node)].all()) for node in range(len(proposed))]
    assert are_accepted == [node in accepted for node in nodes]


@pytest.mark.parametrize(
    ("nodes", "token_ids", "unsent", "unknown"),
    [
        ([0], [1, 4], 3, [4]),  # correct, and left out by the planner of the engine
        ([0], [1, 9], None, []),
        ([], [1], 0, [1, 2, 3, 4]),
        ([0, 1], [1, 2], None, []),  # cut at the end of the output: the last token is that of a node
        ([0, 3, 4], [1, 4, 5, 6], None, []),
        ([], [], None, []),  # ended before its first token
    ],
)
def test_a_correct_node_that_was_not_verified(
    nodes: list[int], token_ids: list[int], unsent: int | None, unknown: list[int]
) -> None:
    #  0 "1" - 1 "2" - 2 "2"
    #        - 3 "4" - 4 "5"
    tree = tree_from_lists([1, 2, 2, 4, 5], [-1, 0, 1, 0, 3])
    calibration = learn(mix_of_one_channel(), tree, tree, nodes, token_ids)
    num_accepted = len(nodes) + (unsent is not None)
    assert calibration.promised.sum() == pytest.approx(0.5 * (5 - len(unknown)))
    assert calibration.accepted.sum() == pytest.approx(num_accepted)


@pytest.mark.parametrize(
    ("nodes", "token", "unknown", "accepted"),
    [
        ([], 9, [4], [False, False, False, True, False, False]),  # its own children only are unknown
        ([], 7, [2], [False, True, False, False, False, False]),
        ([1], 7, [], [False, True, False, False, False, False]),  # no child of the last node
        ([0], -1, [], [True, False, False, False, False, False]),
    ],
)
def test_an_unsent_node_is_a_child_of_the_last_accepted_one(
    nodes: list[int], token: int, unknown: list[int], accepted: list[bool]
) -> None:
    #  0 "6", 1 "7" - 2 "6", 3 "9" - 4 "7", 5 "8" below 0
    tree = tree_from_lists([6, 7, 6, 9, 7, 8], [-1, -1, 1, -1, 3, 0])
    assert outcome(tree, tree, nodes, token) == ([node not in unknown for node in range(6)], accepted)


def test_a_node_below_one_that_was_left_out_is_not_found_elsewhere() -> None:
    proposed, verified = tree_from_lists([5, 6, 6], [-1, 0, -1]), tree_from_lists([6], [-1])
    assert outcome(proposed, verified, [0]) == ([False, False, True], [False, False, True])


def test_weights_learn_how_often_a_candidate_is_right() -> None:
    mix, tree, random = mix_of_one_channel(), tree_from_lists([2], [-1]), np.random.default_rng(0)
    for _ in range(6000):
        nodes = [0] if random.random() < 0.25 else []
        learn(mix, tree, tree, nodes, [*([2] * len(nodes)), 9])
    assert mixed_probability(mix, 0, np.asarray([0.4], np.float32), 0.0) == pytest.approx(0.25, abs=0.08)
    assert np.array_equal(mix.weights[1], mix_of_one_channel().weights[1])


def test_nodes_below_a_refused_one_and_those_not_verified_teach_the_mix_nothing() -> None:
    mix, before, tree = mix_of_one_channel(), mix_of_one_channel().weights, tree_from_lists([5, 6, 7], [-1, 0, 1])
    learn(mix, tree, EMPTY_TREE, [], [1])
    assert np.array_equal(mix.weights, before)
    learn(mix, tree, tree, [], [1])
    refused = mix_of_one_channel()
    learn(refused, tree_from_lists([5], [-1]), tree, [], [1])
    assert refused.weights[0, 0, 1] < before[0, 0, 1]
    assert np.array_equal(mix.weights, refused.weights)
