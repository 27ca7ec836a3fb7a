import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.decoding.cost_correction import CostCorrection

# Times by the curve of passes with 0 .. 4 draft nodes.
CURVE = np.asarray([2.0, 2.2, 2.4, 2.6, 3.0])


def record(
    correction: CostCorrection, base: float, slope: float, passes: int, nodes: tuple[int, ...] = (0, 2, 4)
) -> None:
    """Passes of which a plain one takes `base` times as long as by the curve, and each node `slope` times."""
    for number in range(passes):
        additional = CURVE[nodes[number % len(nodes)]] / CURVE[0] - 1
        correction.record(additional, base + slope * additional)


def test_without_measured_passes_the_curve_counts() -> None:
    correction = CostCorrection()
    record(correction, 5, 20, 7)
    assert correction.corrected(CURVE).tolist() == CURVE.tolist()


@given(st.floats(0.2, 5), st.floats(0.5, 8))
def test_passes_of_several_sizes_determine_both_factors(base: float, ratio: float) -> None:
    correction = CostCorrection()
    record(correction, base, base * ratio, 400)
    found = correction.corrected(CURVE) / base
    assert found[0] == pytest.approx(CURVE[0], rel=0.1)
    # The prior of equal factors has a weight, so that a change is found in part.
    assert found[4] - found[0] == pytest.approx(ratio * (CURVE[4] - CURVE[0]), rel=0.25)


def test_passes_of_one_size_leave_the_shape_of_the_curve() -> None:
    correction = CostCorrection()
    record(correction, 3, 3, 100, nodes=(4,))
    assert correction.corrected(CURVE) == pytest.approx(3 * CURVE)


def test_the_shape_of_the_curve_comes_back_when_small_passes_alone_are_planned() -> None:
    """With a slope that is too high no drafts are planned, so no pass could show that it has fallen."""
    correction = CostCorrection()
    record(correction, 1, 10, 200)
    steep = correction.corrected(CURVE)
    record(correction, 1, 1, 500, nodes=(0,))
    after = correction.corrected(CURVE)
    assert steep[4] / steep[0] > 4
    assert after[4] / after[0] == pytest.approx(CURVE[4] / CURVE[0], rel=0.05)


def test_one_interrupted_pass_changes_little() -> None:
    correction = CostCorrection()
    record(correction, 1, 1, 200)
    correction.record(0.5, 1000.0)
    assert correction.corrected(CURVE)[4] < 1.2 * CURVE[4]


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(1e-6, 1e6)), max_size=60))
def test_corrected_times_never_fall(passes: list[tuple[float, float]]) -> None:
    correction = CostCorrection()
    for additional, measured in passes:
        correction.record(additional, measured)
    times = correction.corrected(CURVE)
    assert np.isfinite(times).all()
    assert times[0] > 0
    assert (np.diff(times) >= 0).all()
