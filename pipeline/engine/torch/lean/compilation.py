"""Decorators that compile the code of the lean pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature
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


def emitted(result: Any, *parameters: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile each call to LLVM code that the decorated function emits: from a builder and the values of the arguments
    it returns the value of the call, or None if `result` is void. result, parameters: numba's types."""

    def decorate(emit: Callable[..., Any]) -> Callable[..., Any]:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            value = emit(builder, *arguments)
            return context.get_dummy_value() if value is None else value

        @wraps(emit)
        def typed(_context: Any, *_arguments: Any) -> Any:
            return result(*parameters), generate

        # numba binds arguments by name, so the parameters need one each.
        names = ("context", *(f"argument_{number}" for number in range(len(parameters))))
        typed.__signature__ = Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names])  # type: ignore[attr-defined]
        return cast("Callable[..., Any]", intrinsic(typed))

    return decorate
