"""Decides whether drafting pays: whether drafts save more time than drafting takes.

The planner selects nodes after drafting, so it cannot save the time of drafting itself. With a tiny model that time is
longer than a pass. A balance adds up what drafting saves and costs, in *plain passes*: multiples of the time of a pass
without drafts. It is limited, so that good drafts of long ago do not pay for bad ones of today. If it is overdrawn,
sequences decode without drafting. Each such pass adds `TRIAL_SHARE`, until drafting is tried again. So trials take that
share of the time, and drafting goes on after the first trial that pays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median_high

# Limit of the balance, which is also its first value.
MOST = 4.0
# Share of the time that trials may take while drafting does not pay.
TRIAL_SHARE = 0.01
# The median of the last measured times counts, so that one interrupted measurement has no effect.
NUM_TIMES = 3


class DraftBalance:
    """The balance of the sequences with the same draft sources."""

    def __init__(self) -> None:
        self._passes = MOST
        self._seconds: deque[float] = deque(maxlen=NUM_TIMES)

    @property
    def pays(self) -> bool:
        """Whether to draft in the next pass."""
        return self._passes >= 0

    def add(self, saved: float, draft_seconds: Sequence[float], plain_seconds: float) -> None:
        """Account for a pass with drafts. saved: time that they are expected to save, in plain passes. draft_seconds:
        measured time of drafting for each sequence. plain_seconds: time of a plain pass."""
        self._seconds.extend(draft_seconds)
        lost = len(draft_seconds) * median_high(self._seconds) / plain_seconds
        self._passes = min(self._passes + saved - lost, MOST)

    def wait(self) -> None:
        """Account for a pass without drafting."""
        self._passes = min(self._passes + TRIAL_SHARE, MOST)
