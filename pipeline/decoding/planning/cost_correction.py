"""Corrects the cost curve by the times of later passes.

The curve is measured once, but the speed of a machine changes: other programs and other virtual machines use its cores.
That slows large passes down more than small ones, so drafts that pay on the idle machine may not pay now. With t(n) the
curve's time of a pass with n draft nodes, a pass is expected to take

    base * t(0) + slope * (t(n) - t(0))

Least squares fit base and slope to recent passes. The choice of nodes depends on slope / base only.
"""

from __future__ import annotations

# Factor by which each pass reduces the weight of earlier ones: the fit covers about fifty passes.
_KEEP = 0.98
# Passes needed before the fit is used.
_MIN_PASSES = 8
# Weight of the prior slope = base, in passes whose drafts take as long as a plain pass. Without it, passes of equal
# size would not determine the slope.
_STIFFNESS = 0.05
# A pass counts as at most this many times its expected time, because the system may have interrupted it.
_MOST = 2.0
# Bounds of slope / base.
_LEAST_RATIO, _MOST_RATIO = 0.25, 16.0


class CostCorrection:
    """The fit. Times are in plain passes: multiples of the curve's t(0)."""

    def __init__(self) -> None:
        self._num_passes = 0
        # Weighted sums over passes: 1, x, x * x, y, x * y. x: additional time by the curve. y: measured time.
        self._sums = [0.0] * 5

    def record(self, additional: float, measured: float) -> None:
        """Add a pass. additional: t(n) / t(0) - 1. measured: its time / t(0)."""
        base, slope = self.factors
        if self._num_passes >= _MIN_PASSES:
            measured = min(measured, _MOST * (base + slope * additional))
        self._num_passes += 1
        row = (1.0, additional, additional * additional, measured, additional * measured)
        self._sums = [_KEEP * old + new for old, new in zip(self._sums, row, strict=True)]

    @property
    def factors(self) -> tuple[float, float]:
        """base and slope: a pass with n draft nodes takes base * t(0) + slope * (t(n) - t(0)). 1 before the fit."""
        if self._num_passes < _MIN_PASSES:
            return 1.0, 1.0
        ones, x, xx, y, xy = self._sums
        ones, x, xx = ones + _STIFFNESS, x - _STIFFNESS, xx + _STIFFNESS
        determinant = ones * xx - x * x
        base, slope = (xx * y - x * xy) / determinant, (ones * xy - x * y) / determinant
        base = max(base, 1e-3)
        return base, min(max(slope, _LEAST_RATIO * base), _MOST_RATIO * base)
