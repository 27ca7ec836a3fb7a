"""How the code of the lean pass is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from numba import njit
from numba.extending import intrinsic

# Importing it also tells numba to keep the machine code in the folder of `pipeline.decoding.compile_cache`.
from pipeline.decoding.compiled import Function


def kernel(function: Function) -> Function:
    """Compile at the first call and keep the machine code on disk. The function runs without Python's lock, and a
    division by zero gives what IEEE arithmetic says."""
    return cast(Function, njit(cache=True, nogil=True, error_model="numpy")(function))


def generator(function: Function) -> Function:
    """Compile a generator with each of its callers: numba cannot use one whose machine code comes from disk."""
    return cast(Function, njit(nogil=True, error_model="numpy")(function))


def generated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile calls into the LLVM code that the function generates: from the types of the arguments it returns a
    signature and a generator."""
    return cast("Callable[..., Any]", intrinsic(function))
