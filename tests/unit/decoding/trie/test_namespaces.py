"""Namespaces of a trie: removal, what they do not share, and their limit."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.decoding.trie import Trie
from pipeline.decoding.trie.arrays import bytes_for
from tests.unit.decoding.trie.integrity import check


def ids(tokens: list[int]) -> np.ndarray:
    return np.asarray(tokens, np.int32)


def test_the_sequence_of_a_removed_namespace_goes_on_as_a_new_one():
    trie = Trie(4)
    trie.insert(ids([9]), "kept")
    trie.insert(ids([1, 2]), "removed")
    trie.remove("removed")
    trie.extend(ids([3]))
    assert [(name, text.tolist()) for name, text in trie.texts()] == [("kept", [9]), ("removed", [3])]


def test_removing_a_namespace_leaves_no_token_of_it():
    trie = Trie(4, 1 << 16)
    trie.insert(ids([7, 8, 9]), "gone")
    trie.insert(ids([1, 2, 3]), "kept")
    trie.remove("gone")
    check(trie)
    assert not trie.count(ids([7]), "gone")
    assert 8 not in trie.arrays.text.tolist()
    assert [(name, text.tolist()) for name, text in trie.texts()] == [("kept", [1, 2, 3])]
    # Between texts of others.
    for begin in (20, 22, 24):
        trie.insert(ids([begin, begin + 1]), "gone")
        trie.insert(ids([begin + 10, 1, 2]), "other")
    trie.remove("gone")
    check(trie)
    assert not set(range(20, 26)) & {token - 1 for token in trie.arrays.text.tolist()}
    assert [text.tolist() for name, text in trie.texts() if name == "other"] == [[b + 10, 1, 2] for b in (20, 22, 24)]
    assert [trie.count(ids(text), "other") for text in ([1, 2], [30, 1, 2], [34, 1])] == [3, 1, 1]


@pytest.mark.parametrize("removed", ["old", "new"])
def test_a_namespace_may_be_removed_after_its_beginning_was_forgotten(removed):
    trie = Trie(2, bytes_for(60))
    trie.insert(np.arange(40, dtype=np.int32), "old")
    trie.insert(np.arange(30, dtype=np.int32), "new")
    num_forgotten = trie.statistics.num_forgotten
    assert 2 < num_forgotten < 40
    assert next(trie.texts())[1].tolist() == list(range(num_forgotten - 2, 40))  # two slots open the text
    trie.remove(removed)
    check(trie)
    trie.insert(np.arange(50, 90, dtype=np.int32), "newest")  # all of "old" is forgotten
    check(trie)
    assert [name for name, _ in trie.texts()] == (["new", "newest"] if removed == "old" else ["newest"])


def test_what_was_not_inserted_counts_nothing():
    trie = Trie(2)
    trie.insert(ids([1, 2, 3]), "known")
    # 1 is also the number of the namespace.
    assert [trie.count(ids(text), "known") for text in ([], [1], [1, 2, 3], [3, 1])] == [0, 1, 0, 0]
    assert [trie.count(ids(text), "unknown") for text in ([], [1])] == [0, 0]


def test_namespaces_are_bounded_too():
    trie = Trie(2, 1 << 13)
    most = len(trie.arrays.nodes) // 16
    for number in range(300):
        trie.insert(ids([number, number + 1]), f"tenant {number}")
        assert trie.statistics.num_namespaces == min(number + 1, most)
    check(trie)
    assert trie.count(ids([299, 300]), "tenant 299") == 1
