"""Cost of a verify pass: measured times, interpolated between the measured points."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CostPoint:
    """One measurement: a pass over batch_size sequences and num_tokens tokens in total (pending and draft tokens), with
    context_len cached tokens per sequence, took `seconds`."""

    num_tokens: int
    batch_size: int
    context_len: int
    seconds: float


@dataclass(frozen=True)
class CostCurve:
    """Times of passes by number of tokens, measured at some batch sizes and context lengths. points: at least one.

    The time is linear between two measured points and constant below the first. Beyond the last point it grows with the
    slope of the last two points, and at least in proportion, so that larger passes are not underestimated.
    """

    points: tuple[CostPoint, ...]

    def seconds_up_to(self, num_tokens: int, batch_size: int, context_len: int) -> Times:
        """[num_tokens + 1] times in seconds of passes of 0, 1, ... num_tokens tokens, never decreasing.

        The time is linear between the two nearest measured context lengths. The nearest measured batch size is used,
        since the time depends mostly on the number of tokens.
        """
        lines = self._lines[min(self._lines, key=lambda measured: (abs(measured - batch_size), measured))]
        low = max((length for length in lines if length < context_len), default=min(lines))
        high = min((length for length in lines if length >= context_len), default=low)
        times = _extended(*lines[low], num_tokens)
        if high > low:
            share = (context_len - low) / (high - low)
            times = (1 - share) * times + share * _extended(*lines[high], num_tokens)
        return times

    @cached_property
    def _lines(self) -> dict[int, dict[int, tuple[Times, float]]]:
        """By batch size and context length: times of passes of 0, 1, ... tokens up to the last measured point, and the
        additional time of each further token."""
        lines: dict[int, dict[int, tuple[Times, float]]] = {}
        for size, length in sorted({(point.batch_size, point.context_len) for point in self.points}):
            at = [point for point in self.points if (point.batch_size, point.context_len) == (size, length)]
            tokens, seconds = zip(*sorted((point.num_tokens, point.seconds) for point in at), strict=True)
            # If a smaller pass took longer than a larger one, its measurement was disturbed.
            times = np.minimum.accumulate(seconds[::-1])[::-1]
            slope = times[-1] / tokens[-1]
            if len(tokens) > 1:
                slope = max(slope, (times[-1] - times[-2]) / (tokens[-1] - tokens[-2]))
            lines.setdefault(size, {})[length] = np.interp(np.arange(tokens[-1] + 1), tokens, times), float(slope)
        return lines


def _extended(times: Times, slope: float, num_tokens: int) -> Times:
    """[num_tokens + 1] times of passes of 0, 1, ... tokens. times, slope: see `CostCurve._lines`."""
    num_beyond = num_tokens + 1 - len(times)
    if num_beyond <= 0:
        return times[: num_tokens + 1]
    return np.concatenate([times, times[-1] + slope * np.arange(1, num_beyond + 1)])
