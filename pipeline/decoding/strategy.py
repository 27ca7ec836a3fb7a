"""Which draft sources a strategy word stands for."""

from __future__ import annotations

from collections.abc import Collection
from typing import get_args

from pipeline.config.schema import Strategy
from pipeline.errors import RequestError

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

# Each entry is a choice: the first source of it that is there takes part. The trie's estimate holds the request's own
# text already; asking source prompt as well wastes nodes on second opinions (0.5 - 1 % fewer tokens per step in
# replay). Likewise recycling reads from every node that is computed what the window has to spend nodes on: with 11 of
# 64 nodes given to a window a step took 3.35 tokens, without 3.45 (28 prompts, model in the loop).
_SOURCES: dict[str, tuple[tuple[str, ...], ...]] = {
    "none": (),
    "lookahead": (("window",),),
    "trie": (("trie", "prompt"), ("supplied",)),
    "hybrid": (("trie", "prompt"), ("supplied",), ("recycling", "window")),
}


def check_strategy(strategy: str) -> None:
    """Raise RequestError for an unknown word."""
    if strategy not in STRATEGIES:
        raise RequestError(f"strategy is {strategy!r}; it must be one of {', '.join(STRATEGIES)}")


def source_names(strategy: str, available: Collection[str], wants_window: bool = False) -> frozenset[str]:
    """Names of the available draft sources that take part under a strategy; "auto" is the same as "hybrid".

    wants_window: the request brings its own W, N and G, so that under "hybrid" the window takes part in any case.
    Raises RequestError for an unknown word.
    """
    check_strategy(strategy)
    strategy = "hybrid" if strategy == "auto" else strategy
    chosen = {next((name for name in choice if name in available), None) for choice in _SOURCES[strategy]} - {None}
    if wants_window and strategy == "hybrid" and "window" in available:
        chosen.add("window")
    return frozenset(name for name in chosen if name is not None)
