"""Estimates of draft trees from the trie equal plain counts, and learn from what was accepted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.decoding.tree import check_tree, children_of, depths
from pipeline.decoding.trie import Trie
from pipeline.decoding.trie.estimator import Estimator
from pipeline.decoding.trie.next_tokens import NUM_CLASSES
from tests.kernel_examples import examples, texts
from tests.unit.decoding.trie.reference import suffixes_in

BRANCH = 6
TEXTS = texts(4, 40)


def ids(tokens: list[int]) -> np.ndarray:
    return np.asarray(tokens, np.int32)


def trie_of(text: list[int]) -> Trie:
    trie = Trie(BRANCH)
    trie.insert(ids(text))
    return trie


def plain_estimate(texts: list[list[int]], context: list[int], escape_counts: np.ndarray) -> dict[int, float]:
    """Estimate of the next token by tries that hold the texts, from plain counts."""
    result: dict[int, float] = {}
    rest = 1.0
    for suffix in suffixes_in(texts, context, BRANCH):
        escape_count = float(escape_counts[suffix.cell])
        for token in set(suffix.followers):
            share = suffix.followers.count(token)
            result[token] = result.get(token, 0.0) + rest * share / (suffix.total + escape_count)
        rest *= escape_count / (suffix.total + escape_count)
    return result


@settings(max_examples=examples(100))
@given(TEXTS, TEXTS, texts(4, 7))
def test_the_first_level_is_what_plain_counts_give(mine, others, context):
    estimator = Estimator(BRANCH)
    tree = estimator.grow(trie_of(mine), trie_of(others), "", ids(context), 64, 1)
    said = dict(zip(tree.token_ids.tolist(), tree.probabilities.tolist(), strict=True))
    expected = plain_estimate([mine, others], context, estimator.escape_counts.reshape(2, -1, NUM_CLASSES))
    # What is very unlikely is left out.
    for token in said.keys() | expected.keys():
        assert said.get(token, 0.0) == pytest.approx(expected.get(token, 0.0), abs=1e-3)


@settings(max_examples=examples(60))
@given(
    texts(6, 80),
    texts(6, 80),
    st.sampled_from(["hierarchical", "parallel", "single"]),
    st.integers(1, 40),
    st.integers(1, 9),
)
def test_a_draft_is_a_tree_within_its_bounds_and_its_probabilities_make_sense(mine, others, how, max_nodes, max_depth):
    own, shared = Trie(BRANCH), Trie(BRANCH, 1 << 15)
    own.insert(ids(mine))
    shared.insert(ids(others))
    estimator = Estimator(BRANCH, how)
    context = ids(mine)
    for _ in range(3):
        tree = estimator.grow(own, shared, "", context, max_nodes, max_depth)
        check_tree(tree, 6)
        assert len(tree) <= max_nodes
        assert depths(tree).max(initial=0) <= max_depth
        path = np.concatenate((tree.probabilities, [1.0]))
        assert (tree.probabilities > 0).all()
        assert (np.diff(tree.probabilities) <= 1e-6).all()
        for parent, children in children_of(tree).items():
            assert len(children) == int((tree.parents == parent).sum()), "siblings carry different tokens"
            assert sum(path[child] for child in children.values()) <= path[parent] * 1.01
            if how == "single" or (how == "parallel" and parent >= 0):
                assert len(children) == 1
        estimator.learn(own, shared, "", context, ids(others[:3]))


def test_a_repeated_text_is_followed_to_the_full_depth():
    own = Trie(12)
    own.insert(ids([*range(100, 140), *range(100, 110)]))
    tree = Estimator(12).grow(own, None, "", ids(list(range(100, 110))), 20, 20)
    longest = depths(tree).max()
    assert longest >= 12
    assert tree.token_ids[:5].tolist() == [110, 111, 112, 113, 114]


def test_behind_an_unknown_token_all_frequent_tokens_are_drafted():
    shared, frequent = Trie(4), [*range(100, 114)]
    shared.insert(ids(frequent * 3))
    shared.insert(ids([*range(200, 260)]))
    tree = Estimator(4).grow(Trie(4), shared, "", ids([999]), 60, 1)
    assert len(tree) == 60
    assert set(frequent) <= set(tree.token_ids.tolist())


def test_the_number_of_next_tokens_is_limited_for_each_suffix_and_in_total():
    own, estimator = Trie(4), Estimator(4)
    for end in range(64):
        own.insert(ids([1, 2, 100 + end]))
    for end in range(64):
        own.insert(ids([3, 2, 200 + end]))
    own.insert(ids([*range(300, 400)]))
    estimator.escape_counts[:] = 100  # so that short suffixes count too
    assert len(estimator.grow(own, None, "", ids([999]), 200, 1)) == 64
    assert len(estimator.grow(own, None, "", ids([1, 2]), 200, 1)) == 128
    assert len(estimator.grow(own, None, "", ids([1, 2]), 0, 1)) == 0


def test_tenants_do_not_see_each_other():
    shared = Trie(BRANCH, 1 << 16)
    shared.insert(ids([1, 2, 3, 4, 5]), "one")
    shared.insert(ids([1, 9, 9, 8]), "two")
    own, estimator = Trie(BRANCH), Estimator(BRANCH)
    assert set(estimator.grow(own, shared, "one", ids([1]), 64, 5).token_ids.tolist()) <= {1, 2, 3, 4, 5}
    assert set(estimator.grow(own, shared, "two", ids([1]), 64, 5).token_ids.tolist()) <= {1, 9, 8}
    assert len(estimator.grow(own, shared, "three", ids([1]), 64, 5)) == 0


def test_what_came_true_is_trusted_more_next_time():
    own = Trie(BRANCH)
    own.insert(ids([1, 2, 3, 4, 5]))
    estimator = Estimator(BRANCH)

    def trust() -> float:
        return float(estimator.grow(own, None, "", ids([2, 3]), 1, 1).probabilities[0])

    before = trust()
    for _ in range(20):
        estimator.learn(own, None, "", ids([2, 3]), ids([4]))
    after = trust()
    for _ in range(60):
        estimator.learn(own, None, "", ids([2, 3]), ids([77]))
    assert trust() < before < after


def test_both_texts_speak_in_one_estimate():
    own, shared = Trie(BRANCH), Trie(BRANCH, 1 << 15)
    own.insert(ids([1, 2, 3]))
    shared.insert(ids([1, 2, 4]))
    tokens = Estimator(BRANCH).grow(own, shared, "", ids([1, 2]), 2, 1).token_ids.tolist()
    assert tokens == [3, 4]


def plain_tree(
    texts: list[list[int]], context: list[int], escape_counts: np.ndarray, depth: int
) -> dict[tuple[int, ...], float]:
    """Probability of every path of up to `depth` tokens after the context, from plain counts."""
    result: dict[tuple[int, ...], float] = {}
    level: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(depth):
        level = {
            (*path, token): probability * share
            for path, probability in level.items()
            for token, share in plain_estimate(texts, [*context, *path], escape_counts).items()
        }
        result |= level
    return result


@settings(max_examples=examples(60))
@given(TEXTS, TEXTS, texts(4, 2))
def test_a_whole_tree_is_what_plain_counts_give(mine, others, context):
    estimator = Estimator(BRANCH)
    tree = estimator.grow(trie_of(mine), trie_of(others), "", ids(context), 100, 3)
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.token_ids.tolist(), tree.parents.tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    said = dict(zip(paths, tree.probabilities.tolist(), strict=True))
    expected = plain_tree([mine, others], context, estimator.escape_counts.reshape(2, -1, NUM_CLASSES), 3)
    # What is very unlikely is left out.
    for path in said.keys() | expected.keys():
        assert said.get(path, 0.0) == pytest.approx(expected.get(path, 0.0), abs=4e-3)
