"""The stored cost curve loads again, is ignored with another build, and refused when damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.decoding.cost import CostPoint
from pipeline.engine.cost_curve import load_cost_curve, save_cost_curve
from pipeline.errors import BuildError

POINTS = (CostPoint(1, 1, 128, 0.01), CostPoint(8, 1, 128, 0.02))


def test_a_saved_curve_loads_with_the_same_points(tmp_path: Path) -> None:
    path = save_cost_curve(tmp_path, "digest", POINTS)
    curve = load_cost_curve(tmp_path, "digest")
    assert curve is not None
    assert curve.points == POINTS
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_no_curve_or_that_of_another_build_is_none(tmp_path: Path) -> None:
    assert load_cost_curve(tmp_path, "digest") is None
    save_cost_curve(tmp_path, "digest", POINTS)
    assert load_cost_curve(tmp_path, "another") is None


@pytest.mark.parametrize("text", ["", "{}", '{"fingerprint_digest": "d", "points": []}'])
def test_a_damaged_file_is_a_build_error_with_the_command_that_mends_it(tmp_path: Path, text: str) -> None:
    save_cost_curve(tmp_path, "d", POINTS).write_text(text)
    with pytest.raises(BuildError, match="--cost-curve"):
        load_cost_curve(tmp_path, "d")
