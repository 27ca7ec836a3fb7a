"""Examples of property tests of kernels."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from numba import config


def examples(number: int) -> int:
    """Number of examples: fewer where kernels run as plain Python, which takes a hundred times as long."""
    return max(number // 12, 4) if config.DISABLE_JIT else number


def texts(num_tokens: int, max_len: int, min_len: int = 0) -> st.SearchStrategy[list[int]]:
    """Random texts of the tokens 0 .. num_tokens - 1. A list drawn token by token takes longer, and has five tokens on
    average."""
    return st.builds(
        lambda seed, length: np.random.default_rng(seed).integers(0, num_tokens, length).tolist(),
        st.integers(0, 2**32 - 1),
        st.integers(min_len, max_len),
    )
