"""One way to compile a hot loop, typed so that callers keep the function's signature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile at the first call, and keep the machine code on disk for the next process."""
    return cast(Function, njit(cache=True)(function))


def inlined(function: Function) -> Function:
    """Compile into each caller: numba counts references to arrays that are passed on, which costs more than a few loads
    and stores do."""
    return cast(Function, njit(inline="always")(function))
