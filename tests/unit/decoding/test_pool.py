"""The n-gram pool: order, bounds, and the tree of its candidates."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.decoding.pool import NgramPool
from pipeline.decoding.tree import path_to


def test_newest_candidates_come_first_and_the_least_recent_makes_room() -> None:
    pool = NgramPool(3, 2)
    pool.add([1, 2, 3])
    pool.add([1, 4, 5])
    assert pool.candidates(1) == [(4, 5), (2, 3)]
    pool.add([1, 2, 3])  # seen again: now the most recent
    pool.add([1, 6, 7])
    assert pool.candidates(1) == [(6, 7), (2, 3)]
    assert pool.candidates(9) == []


def test_every_ngram_of_a_text_is_taken_in() -> None:
    pool = NgramPool(3, 8)
    pool.add_text([1, 2, 3, 1, 2, 4])
    assert pool.candidates(1) == [(2, 4), (2, 3)]
    assert pool.candidates(2) == [(3, 1)]
    pool.add_text([5, 6])  # shorter than an n-gram
    assert pool.candidates(5) == []


def test_no_candidates_are_kept_when_none_may_be_verified() -> None:
    pool = NgramPool(3, 0)
    pool.add_text([1, 2, 3, 4])
    assert pool.candidates(1) == []
    assert not len(pool.tree(1, 5))


def test_the_tree_shares_prefixes_and_favours_what_is_recent_and_frequent() -> None:
    pool = NgramPool(3, 8)
    for ngram in ([1, 2, 3], [1, 2, 4], [1, 5, 6]):
        pool.add(ngram)
    tree = pool.tree(1, 5)
    paths = [tuple(int(tree.token_ids[node]) for node in path_to(tree, leaf)) for leaf in range(len(tree))]
    assert sorted(paths) == [(2,), (2, 3), (2, 4), (5,), (5, 6)]
    assert tree.probabilities is not None
    chance = dict(zip(paths, tree.probabilities.tolist(), strict=True))
    assert chance[2,] > chance[5,] > 0
    assert chance[2, 4] > chance[2, 3]
    assert chance[2,] + chance[5,] < 1
    assert [len(path) for path in paths] == [1, 2, 1, 2, 2]


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), max_size=60), st.integers(1, 4), st.integers(1, 6))
def test_bounded_per_key_with_probabilities_that_never_grow_downwards(
    ngrams: list[list[int]], per_key: int, depth: int
) -> None:
    pool = NgramPool(4, per_key)
    for ngram in ngrams:
        pool.add(ngram)
    for first in range(4):
        seen = [tuple(ngram[1:]) for ngram in ngrams if ngram[0] == first]
        newest = list(dict.fromkeys(reversed(seen)))[:per_key]
        assert pool.candidates(first) == newest
        tree = pool.tree(first, depth)
        if not newest:
            assert not len(tree)
            continue
        assert tree.probabilities is not None
        above = [1.0 if parent < 0 else float(tree.probabilities[parent]) for parent in tree.parents]
        assert all(0 < own <= limit for own, limit in zip(tree.probabilities.tolist(), above, strict=True))
        assert max(len(path_to(tree, node)) for node in range(len(tree))) == min(depth, 3)


def test_probabilities_are_shares_of_the_weights_and_of_the_escape() -> None:
    """Weights 1, 0.7 and 0.49 from the most recent on, and 3 for other continuations of each node."""
    pool = NgramPool(4, 8)
    for ngram in ([1, 5, 6, 7], [1, 2, 3, 8], [1, 2, 4, 9]):
        pool.add(ngram)
    tree = pool.tree(1, 2)
    assert tree.token_ids.tolist() == [2, 4, 3, 5, 6]
    assert tree.parents.tolist() == [-1, 0, 0, -1, 3]
    first, second = 1.7 / (1.7 + 0.49 + 3), 0.49 / (1.7 + 0.49 + 3)
    expected = [first, first / (1.7 + 3), first * 0.7 / (1.7 + 3), second, second * 0.49 / (0.49 + 3)]
    assert tree.probabilities is not None
    assert tree.probabilities.tolist() == pytest.approx(expected)
