"""One row of the reliability of estimates. Reports read it without the compiled loops that count it."""

from __future__ import annotations

from typing import NamedTuple


class ReliabilityRow(NamedTuple):
    """Verified nodes of one source within one bucket. low, high: ends of the bucket. promised: sum of their path
    probabilities. accepted: how many of them were accepted."""

    source: str
    low: float
    high: float
    nodes: int
    promised: float
    accepted: int
