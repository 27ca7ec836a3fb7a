"""Merging of tries: every text is included, and none is counted twice."""

from __future__ import annotations

import numpy as np

from pipeline.decoding.trie import Trie
from pipeline.decoding.trie.merging import merge_tries
from tests.unit.decoding.trie.integrity import check


def trie_of(*texts: str, namespace: str = "") -> Trie:
    trie = Trie(4, 1 << 16)
    for text in texts:
        trie.insert(tokens(text), namespace)
    return trie


def tokens(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def counts(trie: Trie, *texts: str, namespace: str = "") -> list[int]:
    return [trie.count(tokens(text), namespace) for text in texts]


def merged(*tries: Trie) -> Trie:
    into = Trie(4, 1 << 16)
    merge_tries(into, tries)
    check(into)
    return into


def test_a_merged_trie_has_the_texts_of_all() -> None:
    found = merged(trie_of("abcd"), trie_of("wxyz", namespace="n"), trie_of("abce"))

    assert counts(found, "abcd", "abce", "ab", "wxyz") == [1, 1, 2, 0]
    assert counts(found, "wxyz", namespace="n") == [1]


def test_a_common_past_counts_once() -> None:
    past = ["abcd", "abcd", "efgh"]
    found = merged(trie_of(*past, "ijkl"), trie_of(*past, "mnop"))

    assert counts(found, "abcd", "efgh", "ijkl", "mnop") == [2, 1, 1, 1]
    assert counts(merged(found, found), "abcd", "efgh", "ijkl", "mnop") == [2, 1, 1, 1]


def test_what_is_there_already_counts_too() -> None:
    into = trie_of("abcd")
    merge_tries(into, [trie_of("abcd", "efgh")])

    assert counts(into, "abcd", "efgh") == [1, 1]
