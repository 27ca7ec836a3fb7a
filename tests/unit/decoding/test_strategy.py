"""The strategy of a request: what is wanted, and what is available."""

from __future__ import annotations

import pytest

from pipeline.decoding.strategy import STRATEGIES, source_names
from pipeline.errors import RequestError

ALL = ("trie", "prompt", "window", "recycling", "supplied")


@pytest.mark.parametrize(
    ("strategy", "available", "expected"),
    [
        ("none", ALL, set()),
        ("lookahead", ALL, {"window"}),
        ("lookahead", ("trie",), set()),
        ("trie", ALL, {"trie", "supplied"}),
        ("trie", ("prompt",), {"prompt"}),
        ("hybrid", ALL, {"trie", "supplied", "recycling"}),
        ("hybrid", ("prompt", "window"), {"prompt", "window"}),
        ("hybrid", ("window", "recycling", "supplied"), {"recycling", "supplied"}),
        ("auto", ALL, {"trie", "supplied", "recycling"}),
    ],
)
def test_a_strategy_takes_the_best_of_what_is_there(
    strategy: str, available: tuple[str, ...], expected: set[str]
) -> None:
    assert source_names(strategy, available) == expected


def test_a_request_with_sizes_of_its_own_gets_a_window_in_the_hybrid_tree() -> None:
    assert source_names("hybrid", ALL, wants_window=True) == {"trie", "supplied", "recycling", "window"}
    assert source_names("trie", ALL, wants_window=True) == {"trie", "supplied"}
    assert source_names("hybrid", ("trie",), wants_window=True) == {"trie"}


def test_nothing_available_is_plain_decoding_and_unknown_words_are_refused() -> None:
    assert all(source_names(strategy, ()) == frozenset() for strategy in STRATEGIES)
    with pytest.raises(RequestError, match="strategy is 'fast'"):
        source_names("fast", ALL)
    with pytest.raises(RequestError, match=r"strategy is 'f{40}'; it must"):
        source_names("f" * 9999, ALL)
