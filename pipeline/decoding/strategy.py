"""Which draft sources a strategy word stands for."""

from __future__ import annotations

from collections.abc import Collection

from pipeline.errors import RequestError

STRATEGIES = ("none", "lookahead", "trie", "hybrid", "auto")

_SOURCES: dict[str, frozenset[str]] = {
    "none": frozenset(),
    "lookahead": frozenset({"window"}),
    "trie": frozenset({"trie", "prompt", "supplied"}),
    "hybrid": frozenset({"trie", "prompt", "supplied", "window", "recycling"}),
}


def source_names(strategy: str, available: Collection[str]) -> frozenset[str]:
    """Names of the available draft sources that take part under a strategy; "auto" is all of them, as is "hybrid".

    Raises RequestError for an unknown word.
    """
    if strategy not in STRATEGIES:
        raise RequestError(f"strategy is {strategy!r}; it must be one of {', '.join(STRATEGIES)}")
    return _SOURCES["hybrid" if strategy == "auto" else strategy] & frozenset(available)
