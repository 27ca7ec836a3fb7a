"""Arrays that begin at a cache line. A vector that crosses two lines takes two loads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

# Bytes of a vector and of a cache line.
ALIGNMENT = 64


def aligned(
    shape: tuple[int, ...], kind: Any, allocate: Callable[[int, Any], npt.NDArray[Any]] = np.zeros
) -> npt.NDArray[Any]:
    """An array whose first entry has an address that is a multiple of `ALIGNMENT`. allocate: np.zeros or np.empty."""
    num_bytes = int(np.prod(shape)) * np.dtype(kind).itemsize
    memory = allocate(num_bytes + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    result: npt.NDArray[Any] = memory[first : first + num_bytes].view(kind).reshape(shape)
    return result
