"""Decorators that compile the code of the lean pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from numba import njit
from numba.extending import intrinsic

# This import also makes numba store machine code in the folder of `pipeline.decoding.compile_cache`.
from pipeline.decoding.compiled import Function


def kernel(function: Function) -> Function:
    """Compile at the first call and store the machine code on disk. The function runs without Python's lock. Division
    by zero follows IEEE 754."""
    return cast(Function, njit(cache=True, nogil=True, error_model="numpy")(function))


def generator(function: Function) -> Function:
    """Compile a generator into each of its callers, because numba cannot load generators from disk."""
    return cast(Function, njit(nogil=True, error_model="numpy")(function))


def generated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile each call to LLVM code that the function generates. From the types of the arguments it returns a
    signature and a function that emits the code."""
    return cast("Callable[..., Any]", intrinsic(function))
