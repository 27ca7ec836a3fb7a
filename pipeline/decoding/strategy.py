"""The draft sources of a strategy."""

from __future__ import annotations

from collections.abc import Collection
from typing import get_args

from pipeline.config.schema import Strategy, kinds_for
from pipeline.errors import RequestError

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)


def check_strategy(strategy: str) -> None:
    """Raise RequestError for an unknown strategy."""
    if strategy not in STRATEGIES:
        raise RequestError(f"strategy is {strategy[:40]!r}; it must be one of {', '.join(STRATEGIES)}")


def source_names(strategy: str, available: Collection[str], wants_window: bool = False) -> frozenset[str]:
    """Names of the available draft sources that a strategy uses; "auto" is the same as "hybrid".

    wants_window: the request sets its own W, N and G, so "hybrid" includes the window. Raises RequestError for an
    unknown strategy.
    """
    check_strategy(strategy)
    strategy = "hybrid" if strategy == "auto" else strategy
    window = {"window"} & set(available) if wants_window and strategy == "hybrid" else set()
    return kinds_for(strategy, available) | window
