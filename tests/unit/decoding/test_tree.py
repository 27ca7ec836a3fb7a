"""Draft trees: depths, masks, selection, agreeing paths, and refused trees."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.decoding.tree import (
    EMPTY_TREE,
    DraftTree,
    agreeing_path,
    ancestor_mask,
    chain,
    check_tree,
    children_of,
    depths,
    find_nodes,
    limit_tree,
    path_to,
    read_only,
    select_nodes,
    tree_from_lists,
)


@st.composite
def trees(draw: st.DrawFn, max_size: int = 12) -> DraftTree:
    parents = [draw(st.integers(-1, node - 1)) for node in range(draw(st.integers(0, max_size)))]
    tokens = [draw(st.integers(0, 5)) for _ in parents]
    probabilities: list[float] = []
    for parent in parents:
        above = 1.0 if parent < 0 else probabilities[parent]
        probabilities.append(above * draw(st.floats(0.05, 1.0)))
    return tree_from_lists(tokens, parents, probabilities)


def test_depths_and_mask_of_a_small_tree_are_as_drawn() -> None:
    tree = tree_from_lists([10, 11, 12, 13], [-1, 0, 0, -1])
    assert depths(tree).tolist() == [1, 2, 2, 1]
    assert ancestor_mask(tree).astype(int).tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1]]


def test_a_chain_is_a_tree_with_one_branch() -> None:
    tree = chain([7, 8, 9])
    assert (tree.parents.tolist(), tree.num_fixed) == ([-1, 0, 1], 0)
    assert (ancestor_mask(tree) == np.tri(3, dtype=bool)).all()


@given(trees())
def test_mask_row_holds_exactly_the_path_to_the_node(tree: DraftTree) -> None:
    mask = ancestor_mask(tree)
    for node in range(len(tree)):
        assert np.flatnonzero(mask[node]).tolist() == path_to(tree, node)
        assert len(path_to(tree, node)) == depths(tree)[node]


@given(trees(), st.data())
def test_selected_nodes_keep_their_paths(tree: DraftTree, data: st.DataObject) -> None:
    keep = np.asarray([data.draw(st.booleans()) for _ in range(len(tree))], bool)
    subtree = select_nodes(tree, keep)
    check_tree(subtree)
    kept = [node for node in range(len(tree)) if keep[path_to(tree, node)].all()]
    paths = [tree.token_ids[path_to(tree, node)].tolist() for node in kept]
    assert [subtree.token_ids[path_to(subtree, node)].tolist() for node in range(len(subtree))] == paths


def test_a_selection_of_no_nodes_is_the_empty_tree() -> None:
    assert select_nodes(chain([1, 2], [0.5, 0.4]), np.zeros(2, bool)) is EMPTY_TREE


def test_a_window_is_one_as_long_as_it_has_all_its_nodes() -> None:
    window = replace(chain([1, 2, 3]), num_fixed=2)
    assert [select_nodes(window, np.arange(3) < count).num_fixed for count in range(4)] == [0, 0, 2, 2]


@given(trees(), st.integers(-1, 14), st.integers(-1, 6), st.integers(0, 4), st.booleans())
def test_a_limited_tree_holds_the_fixed_and_then_the_most_probable_nodes_within_the_limits(
    tree: DraftTree, max_nodes: int, max_depth: int, num_fixed: int, rated: bool
) -> None:
    num_fixed = min(num_fixed, len(tree))
    numbers = np.arange(len(tree), dtype=np.int32)
    tree = replace(tree, probabilities=tree.probabilities if rated else None, sources=numbers, num_fixed=num_fixed)

    def rank(node: int) -> tuple[bool, float, int]:
        is_rated = tree.probabilities is not None and node >= num_fixed
        return node >= num_fixed, -tree.probabilities[node] if is_rated else 0.0, node

    shallow = [node for node in range(len(tree)) if len(path_to(tree, node)) <= max_depth]
    expected = sorted(sorted(shallow, key=rank)[: max(max_nodes, 0)])
    limited = limit_tree(tree, max_nodes, max_depth)
    check_tree(limited)
    assert limited.token_ids.tolist() == tree.token_ids[expected].tolist()
    if expected:
        assert limited.sources is not None
        assert limited.sources.tolist() == expected
        assert (limited.probabilities is None) is not rated
    assert limited.num_fixed == (num_fixed if set(range(num_fixed)) <= set(expected) else 0)


def test_children_are_found_by_their_tokens_of_siblings_with_one_token_the_first() -> None:
    tree = tree_from_lists([5, 6, 5, 7, 6], [-1, 0, -1, 2, 0])
    assert children_of(tree) == {-1: {5: 0}, 0: {6: 1}, 2: {7: 3}}


@pytest.mark.parametrize(("future", "nodes"), [([5, 7, 8], [0, 2]), ([5, 9], [0]), ([9, 5], []), ([], [])])
def test_the_agreeing_path_goes_as_far_as_the_tokens_are_in_the_tree(future: list[int], nodes: list[int]) -> None:
    assert agreeing_path(tree_from_lists([5, 6, 7], [-1, 0, 0]), future) == nodes


@pytest.mark.parametrize(
    ("tokens", "parents", "vocab_size", "message"),
    [
        ([1, 2], [-1, 1], None, "node 1 has parent 1"),
        ([1, 2], [1, -1], None, "node 0 has parent 1"),
        ([1], [-2], None, "node 0 has parent -2"),
        ([1, 2], [-1], None, "lists of one length"),
        ([1, 99], [-1, 0], 99, "token 99; the vocabulary has 0..98"),
        ([-1], [-1], 99, "token -1"),
    ],
)
def test_what_is_no_tree_is_refused_with_the_place(
    tokens: list[int], parents: list[int], vocab_size: int | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_tree(DraftTree(np.asarray(tokens, np.int32), np.asarray(parents, np.int32)), vocab_size)


def test_the_empty_tree_is_a_tree() -> None:
    check_tree(EMPTY_TREE, 1)
    assert depths(EMPTY_TREE).shape == (0,)
    assert ancestor_mask(EMPTY_TREE).shape == (0, 0)


def test_a_read_only_view_refuses_changes_and_shows_those_of_its_array() -> None:
    array = np.zeros(2, np.int32)
    view = read_only(array)
    array[0] = 5
    assert view.tolist() == [5, 0]
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_token_zero_is_in_the_vocabulary() -> None:
    check_tree(chain([0, 1]), vocab_size=2)


def test_lists_that_are_no_tree_are_refused() -> None:
    with pytest.raises(ValueError, match="node 0 has parent 0"):
        tree_from_lists([1], [0])


def test_nodes_are_found_by_their_paths() -> None:
    tree = tree_from_lists([5, 6, 6, 7, 7], [-1, 0, -1, 1, 2])
    other = tree_from_lists([6, 5, 6, 7], [-1, -1, 1, 0])
    assert find_nodes(tree, other) == [1, 2, 0, -1, 3]
    assert find_nodes(tree_from_lists([6, 5, 6], [-1, 0, 1]), other) == [0, -1, -1]
    twice = tree_from_lists([5, 5, 6, 7], [-1, -1, 1, 0])
    assert find_nodes(twice, twice) == [0, 0, 2, 3]
