"""A tree is split into parts of even size, each with the ancestors of its nodes."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.decoding.lookahead import Window
from pipeline.decoding.split import split_tree
from pipeline.decoding.tree import EMPTY_TREE, DraftTree, chain, tree_from_lists


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    parents = [draw(st.integers(-1, node - 1)) for node in range(draw(st.integers(0, 14)))]
    return tree_from_lists(list(range(len(parents))), parents)


@given(trees(), st.integers(1, 6))
def test_parts_cover_the_tree_and_hold_every_ancestor(tree: DraftTree, num_parts: int) -> None:
    parts = split_tree(tree, num_parts)
    assert len(parts) == num_parts
    assert {int(node) for part in parts for node in part} == set(range(len(tree)))
    for part in parts:
        assert part.tolist() == sorted(set(part.tolist()))
        assert all(tree.parents[node] in (-1, *part) for node in part)


def brute_force(tree: DraftTree, num_parts: int) -> int:
    """Size of the largest part of the best split into runs of branches in depth-first order."""
    paths = []

    def walk(node: int, above: frozenset[int]) -> None:
        path = above | {node} if node >= 0 else above
        below = [child for child, parent in enumerate(tree.parents.tolist()) if parent == node]
        for child in below:
            walk(child, path)
        if not below and node >= 0:
            paths.append(path)

    walk(-1, frozenset())
    cuts = itertools.combinations_with_replacement(range(len(paths) + 1), num_parts - 1)
    return min(
        max(len(frozenset().union(*paths[a:b])) for a, b in itertools.pairwise((0, *cut, len(paths)))) for cut in cuts
    )


@settings(max_examples=60)
@given(trees(), st.integers(1, 4))
def test_the_largest_part_is_as_small_as_can_be(tree: DraftTree, num_parts: int) -> None:
    assert max(map(len, split_tree(tree, num_parts))) == brute_force(tree, num_parts)


def test_a_chain_and_nothing_are_not_split() -> None:
    assert [part.tolist() for part in split_tree(chain([1, 2, 3]), 2)] == [[0, 1, 2], []]
    assert [part.tolist() for part in split_tree(EMPTY_TREE, 2)] == [[], []]


def test_a_window_is_split_by_columns() -> None:
    window = Window(6, 4, np.arange(9, dtype=np.int32), 0)
    for _ in range(2):
        window.advance(1, np.zeros(6, np.int32))
    tree = window.tree()
    first, second = split_tree(tree, 2)
    assert len(tree) == 17
    # The last three columns of two levels with the whole chain of five; the first three, and two of the chain again.
    assert (len(first), len(second)) == (11, 8)
