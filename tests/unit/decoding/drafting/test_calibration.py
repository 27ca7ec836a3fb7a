"""Calibration: estimates are corrected by what was accepted, per channel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.decoding.drafting.calibration import (
    HIGHEST,
    LARGEST_RATIO,
    NUM_CELLS,
    Calibration,
    corrected,
    first_calibration,
    learn_ratios,
)


def learnt(estimate: float, rate: float, channel: int = 0, steps: int = 400) -> Calibration:
    """A calibration that saw nodes of one estimate accepted at one rate."""
    calibration = first_calibration(2)
    random = np.random.default_rng(0)
    for _ in range(steps):
        accepted = random.random(8) < rate
        learn_ratios(calibration, np.full(8, estimate, np.float32), np.full(8, channel), np.ones(8, np.bool_), accepted)
    return calibration


def one_corrected(calibration: Calibration, estimate: float, channel: int = 0) -> float:
    (result,) = corrected(calibration, np.asarray([estimate], np.float32), np.asarray([channel]), np.asarray([-1]))
    return float(result)


def test_nothing_learnt_changes_nothing() -> None:
    assert one_corrected(first_calibration(1), 0.3) == pytest.approx(0.3)


@pytest.mark.parametrize(("estimate", "rate"), [(0.5, 0.8), (0.5, 0.25), (0.3, 0.12), (0.05, 0.15), (0.9, 0.6)])
def test_estimates_are_corrected_both_ways(estimate: float, rate: float) -> None:
    assert one_corrected(learnt(estimate, rate), estimate) == pytest.approx(rate, rel=0.15)


@pytest.mark.parametrize(("estimate", "rate", "expected"), [(0.1, 1.0, 0.6), (0.6, 0.0, 0.1)])
def test_no_estimate_is_corrected_by_more_than_a_factor_of_six(estimate: float, rate: float, expected: float) -> None:
    assert one_corrected(learnt(estimate, rate), estimate) == pytest.approx(expected)


def test_channels_are_corrected_apart() -> None:
    calibration = learnt(0.5, 0.1, channel=1)
    assert one_corrected(calibration, 0.5, channel=0) == pytest.approx(0.5)
    assert one_corrected(calibration, 0.5, channel=1) < 0.15


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 20), st.floats(0, 1, width=32)), min_size=1, max_size=20), st.data())
def test_paths_never_get_more_probable_downwards(nodes: list[tuple[int, float]], data: st.DataObject) -> None:
    calibration = first_calibration(3)
    for _ in range(5):
        learn_ratios(
            calibration,
            np.asarray([estimate for _, estimate in nodes], np.float32),
            np.arange(len(nodes)) % 3,
            np.ones(len(nodes), np.bool_),
            np.asarray(data.draw(st.lists(st.booleans(), min_size=len(nodes), max_size=len(nodes)))),
        )
    parents = np.asarray([min(parent, node - 1) for node, (parent, _) in enumerate(nodes)])
    estimates = np.asarray([estimate for _, estimate in nodes], np.float32)
    result = corrected(calibration, estimates, np.arange(len(nodes)) % 3, parents)
    assert (result <= np.minimum(estimates * LARGEST_RATIO, 1) + 1e-6).all()
    for node, parent in enumerate(parents.tolist()):
        assert parent < 0 or result[node] <= result[parent]


def test_nodes_that_were_not_verified_teach_nothing() -> None:
    calibration, all_refused = first_calibration(1), np.zeros(4, np.bool_)
    estimates, channels = np.full(4, 0.5, np.float32), np.zeros(4, np.int32)
    learn_ratios(calibration, estimates, channels, np.zeros(4, np.bool_), all_refused)
    assert one_corrected(calibration, 0.5) == pytest.approx(0.5)
    learn_ratios(calibration, estimates, channels, np.asarray([False, True, False, True]), all_refused)
    assert calibration.promised.sum() == pytest.approx(1.0)


def ratio(calibration: Calibration, estimate: float) -> float:
    return one_corrected(calibration, estimate) / estimate


def test_a_cell_corrects_its_neighbourhood_and_nothing_further() -> None:
    """Cells stand at 1, 2^-1/2, 2^-1, 2^-3/2: halfway between two, each counts half."""
    calibration = learnt(2**-0.5, 0.2)
    learned = ratio(calibration, 2**-0.5)
    assert learned == pytest.approx(0.2 / 2**-0.5, rel=0.15)
    for halvings, share in ((0.25, 0.5), (0.75, 0.5), (1.0, 0.0), (1.5, 0.0), (6.0, 0.0)):
        assert ratio(calibration, 2**-halvings) == pytest.approx(1 - share * (1 - learned), rel=1e-4)
    assert one_corrected(calibration, 1.0) == pytest.approx(HIGHEST)


def test_the_outcome_of_an_estimate_between_two_cells_counts_for_both_in_proportion() -> None:
    calibration = first_calibration(1)
    estimates = np.full(1, 2**-0.625, np.float32)  # a quarter of the way from the cell at 2^-1/2 to that at 2^-1
    learn_ratios(calibration, estimates, np.zeros(1, np.int32), np.ones(1, np.bool_), np.ones(1, np.bool_))
    assert calibration.accepted[0, :4].tolist() == pytest.approx([0, 0.75, 0.25, 0], abs=1e-6)
    assert calibration.promised[0, :4].tolist() == pytest.approx([0, 0.75 * 2**-0.625, 0.25 * 2**-0.625, 0], abs=1e-6)
    assert one_corrected(calibration, 2**-0.5) == pytest.approx(2**-0.5 * (3 + 0.75) / (3 + 0.75 * 2**-0.625))
    learn_ratios(calibration, estimates[:0], np.zeros(0, np.int32), np.zeros(0, np.bool_), np.zeros(0, np.bool_))
    assert calibration.accepted[0, 1] == pytest.approx(0.75 * 0.998)


@pytest.mark.parametrize("estimate", [0.0, 1e-30, 2**-11, 1.0])
def test_the_first_and_last_cells_hold_whatever_lies_beyond(estimate: float) -> None:
    calibration = learnt(estimate, 1.0, steps=3)
    assert one_corrected(calibration, estimate) >= min(estimate, HIGHEST)
    place = calibration.accepted[0].argmax()
    assert place == (0 if estimate == 1.0 else NUM_CELLS - 2 if estimate == 2**-11 else NUM_CELLS - 1)
