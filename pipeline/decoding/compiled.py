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
# The fields of a NamedTuple of arrays as a plain tuple: numba takes that from Python eight microseconds faster. What is
# called from Python takes it, and makes the NamedTuple of it.
Plain = tuple[Any, ...]
# Casts whose results mypy takes for any number. What numba reads from arrays of 32 bits keeps 32 bits until it is cast.
int64: Any = np.int64
float32: Any = np.float32


class _LoopCacheLocator(caching._CacheLocator):  # type: ignore[misc]
    """Names the folder of a loop's machine code to numba. The folder belongs to one state of the sources, so it is
    never stale."""

    def __init__(self, py_func: Any, path: Path) -> None:
        self._path, self._line = path, py_func.__code__.co_firstlineno

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _LoopCacheLocator | None:
        """None for what is not ours."""
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
    """Compile at the first call."""
    return cast(Function, njit(cache=True)(function))


def kernel(function: Function) -> Function:
    """Compile, as `compiled`, a loop over memory that its caller owns. It makes no array and returns numbers, so numba
    need not count references to the arrays that it passes on, which would cost three times as much as the work."""
    return cast(Function, njit(cache=True, _nrt=False)(function))


def subkernel(function: Function) -> Function:
    """Compile a part of kernels, which only they call: it has no code for being called from Python, which would take
    longer to compile than the part itself. It may also return arrays that it was given."""
    return cast(Function, njit(cache=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function))


def inlined(function: Function) -> Function:
    """Compile into each caller: numba counts references to arrays that are passed on, which costs more than a few loads
    and stores do."""
    return cast(Function, njit(inline="always")(function))


def records(array: npt.NDArray[Any]) -> Any:
    """An array of records whose fields compiled loops read and write as attributes. Without the compiler
    (NUMBA_DISABLE_JIT) numpy needs the conversion."""
    return array.view(np.recarray) if config.DISABLE_JIT else array
