"""The cost curve: interpolation and extrapolation of measured passes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.decoding.planning.cost import CostCurve, CostPoint
from tests.fakes import cost_curve

rows = st.lists(
    st.tuples(st.integers(1, 60), st.sampled_from([1, 4, 8]), st.sampled_from([0, 256, 1024]), st.floats(0.001, 1.0)),
    min_size=1,
    max_size=20,
    unique_by=lambda row: row[:3],
)


def test_time_is_linear_between_measurements_and_in_context() -> None:
    curve = cost_curve([(1, 1, 0, 0.01), (11, 1, 0, 0.02), (1, 1, 100, 0.03), (11, 1, 100, 0.06)])
    assert curve.seconds_up_to(6, 1, 0)[-1] == pytest.approx(0.015)
    assert curve.seconds_up_to(6, 1, 50)[-1] == pytest.approx(0.03)
    assert curve.seconds_up_to(6, 1, 5000)[-1] == pytest.approx(0.045)


def test_beyond_the_last_measurement_the_last_slope_goes_on() -> None:
    curve = cost_curve([(1, 1, 0, 0.01), (11, 1, 0, 0.11), (13, 1, 0, 0.19)])
    assert curve.seconds_up_to(14, 1, 0)[-1] == pytest.approx(0.23)
    assert curve.seconds_up_to(15, 1, 0)[-1] == pytest.approx(0.27)
    assert cost_curve([(1, 1, 0, 0.01), (3, 1, 0, 0.05)]).seconds_up_to(4, 1, 0)[-1] == pytest.approx(0.07)
    assert cost_curve([(10, 1, 0, 0.01)]).seconds_up_to(20, 1, 0)[-1] == pytest.approx(0.02)


def test_what_was_not_measured_is_not_free() -> None:
    """A measured curve may be flat, or end with a point that was disturbed less than the others."""
    curve = cost_curve([(1, 1, 0, 1.0), (32, 1, 0, 2.0), (64, 1, 0, 1.98)])
    assert curve.seconds_up_to(128, 1, 0)[-1] == pytest.approx(2 * 1.98)


def test_the_nearest_batch_size_counts() -> None:
    curve = cost_curve([(4, 1, 0, 0.1), (4, 8, 0, 0.3)])
    assert curve.seconds_up_to(4, 2, 0)[-1] == pytest.approx(0.1)
    assert curve.seconds_up_to(4, 7, 0)[-1] == pytest.approx(0.3)


@settings(deadline=None)
@given(rows, st.integers(1, 100), st.integers(1, 9), st.integers(0, 2000))
def test_a_larger_pass_never_costs_less(
    measured: list[tuple[int, int, int, float]], num_tokens: int, batch_size: int, context_len: int
) -> None:
    curve = cost_curve(measured)
    times = curve.seconds_up_to(num_tokens, batch_size, context_len)
    assert len(times) == num_tokens + 1
    assert (np.diff(times) >= 0).all()
    assert (times > 0).all()
    assert np.isfinite(times).all()


def test_a_curve_does_not_depend_on_the_order_of_its_rows() -> None:
    rows = [(4, 1, 0, 0.2), (1, 1, 0, 0.1), (4, 8, 16, 0.3)]
    one, other = (cost_curve(order).seconds_up_to(6, 1, 0) for order in (rows, rows[::-1]))
    assert one.tolist() == other.tolist()


def test_between_two_context_lengths_the_time_is_linear() -> None:
    curve = cost_curve([(4, 1, 16, 0.1), (4, 1, 48, 0.5)])
    assert curve.seconds_up_to(4, 1, 24)[-1] == pytest.approx(0.2)
    assert curve.seconds_up_to(4, 1, 8)[-1] == pytest.approx(0.1)
    assert curve.seconds_up_to(4, 1, 64)[-1] == pytest.approx(0.5)


def test_at_a_measured_context_length_the_measurement_counts() -> None:
    curve = CostCurve(tuple(CostPoint(1, 1, length, seconds) for length, seconds in ((0, 0.1), (100, 0.4), (200, 0.5))))
    times = [curve.seconds_up_to(1, 1, length)[-1] for length in (0, 100, 200, 300)]
    assert times == pytest.approx([0.1, 0.4, 0.5, 0.5])
