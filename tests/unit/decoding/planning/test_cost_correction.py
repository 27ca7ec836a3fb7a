import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.decoding.planning.cost_correction import CostCorrection

# Times by the curve of passes with 0 .. 4 draft nodes.
CURVE = np.asarray([2.0, 2.2, 2.4, 2.6, 3.0])


def record(
    correction: CostCorrection, base: float, slope: float, passes: int, nodes: tuple[int, ...] = (0, 2, 4)
) -> None:
    """Passes of which a plain one takes `base` times as long as by the curve, and each node `slope` times."""
    for number in range(passes):
        additional = CURVE[nodes[number % len(nodes)]] / CURVE[0] - 1
        correction.record(additional, base + slope * additional)


def corrected(correction: CostCorrection) -> np.ndarray:
    base, slope = correction.factors
    return base * CURVE[0] + slope * (CURVE - CURVE[0])


def test_without_measured_passes_the_curve_counts() -> None:
    correction = CostCorrection()
    record(correction, 5, 20, 7)
    assert corrected(correction).tolist() == CURVE.tolist()
    record(correction, 5, 20, 1)
    assert corrected(correction)[0] > 3 * CURVE[0]


@pytest.mark.parametrize(("slope", "ratio"), [(100.0, 16.0), (0.01, 0.25)])
def test_the_ratio_of_the_factors_is_bounded(slope: float, ratio: float) -> None:
    correction = CostCorrection()
    record(correction, 1, slope, 100)
    assert np.diff(corrected(correction)) / corrected(correction)[0] == pytest.approx(ratio * np.diff(CURVE) / CURVE[0])


def test_a_pass_takes_a_thousandth_of_the_curves_time_or_more() -> None:
    correction = CostCorrection()
    record(correction, 1e-6, 1e-6, 100)
    assert corrected(correction)[0] == pytest.approx(CURVE[0] / 1000)


@given(st.floats(0.2, 5), st.floats(0.5, 8))
def test_passes_of_several_sizes_determine_both_factors(base: float, ratio: float) -> None:
    correction = CostCorrection()
    record(correction, base, base * ratio, 400)
    found = corrected(correction) / base
    assert found[0] == pytest.approx(CURVE[0], rel=0.1)
    # The prior of equal factors has a weight, so that a change is found in part.
    found_ratio = (found[4] - found[0]) / (CURVE[4] - CURVE[0])
    assert found_ratio == pytest.approx(ratio, rel=0.25)
    assert min(1, ratio) - 1e-6 <= found_ratio <= max(1, ratio) + 1e-6


def test_passes_of_one_size_leave_the_shape_of_the_curve() -> None:
    correction = CostCorrection()
    record(correction, 3, 3, 100, nodes=(4,))
    assert corrected(correction) == pytest.approx(3 * CURVE)


def test_the_shape_of_the_curve_comes_back_when_small_passes_alone_are_planned() -> None:
    """With a slope that is too high no drafts are planned, so no pass could show that it has fallen."""
    correction = CostCorrection()
    record(correction, 1, 10, 200)
    steep = corrected(correction)
    record(correction, 1, 1, 500, nodes=(0,))
    after = corrected(correction)
    assert steep[4] / steep[0] > 4
    assert after[4] / after[0] == pytest.approx(CURVE[4] / CURVE[0], rel=0.05)


@pytest.mark.parametrize(("num_passes", "change"), [(8, 0.3), (200, 0.06)])
def test_one_interrupted_pass_changes_little(num_passes: int, change: float) -> None:
    """It counts as at most twice its expected time."""
    correction, doubled = CostCorrection(), CostCorrection()
    for fit, measured in ((correction, 1000.0), (doubled, 3.0)):
        record(fit, 1, 1, num_passes)
        fit.record(0.5, measured)
    assert corrected(correction) == pytest.approx(corrected(doubled), rel=1e-3)
    assert corrected(correction) == pytest.approx(CURVE, rel=change)


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(1e-6, 1e6)), max_size=60))
def test_corrected_times_never_fall(passes: list[tuple[float, float]]) -> None:
    correction = CostCorrection()
    for additional, measured in passes:
        correction.record(additional, measured)
    times = corrected(correction)
    assert np.isfinite(times).all()
    assert times[0] > 0
    assert (np.diff(times) >= 0).all()
