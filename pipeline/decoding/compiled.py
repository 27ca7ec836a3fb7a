"""Decorators that compile hot loops, typed so that callers keep the function's signature. Machine code is cached on
disk in the folder of `compile_cache`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import config, njit
from numba.core import caching

from pipeline.decoding.compile_cache import PACKAGE, cache_path

Function = TypeVar("Function", bound=Callable[..., Any])
# The fields of a NamedTuple of arrays, as a plain tuple. Loops called from Python take this and build the NamedTuple
# themselves, because numba unpacks it eight microseconds faster than a NamedTuple.
Plain = tuple[Any, ...]
# Casts that mypy accepts as any number. numba keeps values read from 32-bit arrays at 32 bits unless they are cast.
int64: Any = np.int64
float32: Any = np.float32


class _LoopCacheLocator(caching._CacheLocator):  # type: ignore[misc]
    """Gives numba the folder of a loop's machine code. The folder belongs to one state of the sources, so it is never
    stale."""

    def __init__(self, py_func: Any, path: Path) -> None:
        self._path, self._line = path, py_func.__code__.co_firstlineno

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _LoopCacheLocator | None:
        """None for functions of other packages."""
        path = Path(py_file).absolute()
        return cls(py_func, path.relative_to(PACKAGE)) if path.is_relative_to(PACKAGE) else None

    def get_cache_path(self) -> str:
        return str(cache_path() / self._path.parent)

    def get_source_stamp(self) -> str:
        return cache_path().name

    def get_disambiguator(self) -> str:
        return str(self._line)


caching.CacheImpl._locator_classes.insert(0, _LoopCacheLocator)


def compiled(function: Function) -> Function:
    """Compile a function at its first call."""
    return cast(Function, njit(cache=True)(function))


def kernel(function: Function) -> Function:
    """Compile, as `compiled`, a loop over memory that its caller owns. It allocates no array and returns numbers.
    Without numba's reference counting it takes a quarter of the time."""
    return cast(Function, njit(cache=True, _nrt=False)(function))


def subkernel(function: Function) -> Function:
    """Compile a function that only kernels call. It has no wrapper for calls from Python, which would take longer to
    compile than the function itself. It may also return arrays that it received."""
    return cast(Function, njit(cache=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function))


def inlined(function: Function) -> Function:
    """Compile a function into each caller, which saves numba's reference counting of the arrays it receives."""
    return cast(Function, njit(inline="always")(function))


def records(array: npt.NDArray[Any]) -> Any:
    """The array in a form whose fields are attributes, as compiled loops use them. Only without the compiler
    (NUMBA_DISABLE_JIT) does numpy need a conversion."""
    return array.view(np.recarray) if config.DISABLE_JIT else array
