"""Calibration: estimates are corrected by what was accepted, per channel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.decoding.calibration import LARGEST_RATIO, Calibration


def learnt(estimate: float, rate: float, channel: int = 0, steps: int = 400) -> Calibration:
    """A calibration that saw nodes of one estimate accepted at one rate."""
    calibration = Calibration(2)
    random = np.random.default_rng(0)
    for _ in range(steps):
        accepted = random.random(8) < rate
        calibration.learn(np.full(8, estimate, np.float32), np.full(8, channel), np.arange(8), accepted)
    return calibration


def corrected(calibration: Calibration, estimate: float, channel: int = 0) -> float:
    (result,) = calibration.corrected(np.asarray([estimate], np.float32), np.asarray([channel]), np.asarray([-1]))
    return float(result)


def test_nothing_learnt_changes_nothing() -> None:
    assert corrected(Calibration(1), 0.3) == pytest.approx(0.3)


@pytest.mark.parametrize(("estimate", "rate"), [(0.5, 0.8), (0.5, 0.25), (0.3, 0.12), (0.05, 0.15), (0.9, 0.6)])
def test_estimates_are_corrected_both_ways(estimate: float, rate: float) -> None:
    assert corrected(learnt(estimate, rate), estimate) == pytest.approx(rate, rel=0.15)


def test_channels_are_corrected_apart() -> None:
    calibration = learnt(0.5, 0.1, channel=1)
    assert corrected(calibration, 0.5, channel=0) == pytest.approx(0.5)
    assert corrected(calibration, 0.5, channel=1) < 0.15


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 20), st.floats(0, 1, width=32)), min_size=1, max_size=20), st.data())
def test_paths_never_get_more_probable_downwards(nodes: list[tuple[int, float]], data: st.DataObject) -> None:
    calibration = Calibration(3)
    for _ in range(5):
        calibration.learn(
            np.asarray([estimate for _, estimate in nodes], np.float32),
            np.arange(len(nodes)) % 3,
            np.arange(len(nodes)),
            np.asarray(data.draw(st.lists(st.booleans(), min_size=len(nodes), max_size=len(nodes)))),
        )
    parents = np.asarray([min(parent, node - 1) for node, (parent, _) in enumerate(nodes)])
    estimates = np.asarray([estimate for _, estimate in nodes], np.float32)
    result = calibration.corrected(estimates, np.arange(len(nodes)) % 3, parents)
    assert (result <= np.minimum(estimates * LARGEST_RATIO, 1) + 1e-6).all()
    for node, parent in enumerate(parents.tolist()):
        assert parent < 0 or result[node] <= result[parent]


def test_nodes_that_were_not_verified_teach_nothing() -> None:
    calibration, all_refused = Calibration(1), np.zeros(4, np.bool_)
    estimates, channels = np.full(4, 0.5, np.float32), np.zeros(4, np.int32)
    calibration.learn(estimates, channels, np.full(4, -1), all_refused)
    assert corrected(calibration, 0.5) == pytest.approx(0.5)
    calibration.learn(estimates, channels, np.asarray([-1, 0, -1, 1]), all_refused)
    assert calibration.promised.sum() == pytest.approx(1.0)
