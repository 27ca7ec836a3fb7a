"""Number of examples in property tests of kernels."""

from __future__ import annotations

from numba import config


def examples(number: int) -> int:
    """Fewer where kernels run as plain Python, which takes a hundred times as long."""
    return max(number // 12, 4) if config.DISABLE_JIT else number
