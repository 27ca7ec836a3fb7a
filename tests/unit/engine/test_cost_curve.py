"""The stored cost curve loads again, is ignored with another build or number of processes, and refused when damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.checkpoint.fetch import known_content_hash
from pipeline.config.resolution import resolve_config
from pipeline.decoding.cost import CostPoint
from pipeline.engine.artifact import Artifact, Manifest
from pipeline.engine.cost_curve import load_cost_curve, save_cost_curve
from pipeline.engine.torch.build import fingerprint
from pipeline.errors import BuildError

POINTS = (CostPoint(1, 1, 128, 0.01), CostPoint(8, 1, 128, 0.02))


def artifact(folder: Path, *overrides: str, digest: str = "digest") -> Artifact:
    resolved = resolve_config("tiny-random-llama", "latency", ("backend=torch", "device=cpu", *overrides))
    manifest = Manifest(
        model="tiny-random-llama",
        profile="latency",
        fingerprint=fingerprint(resolved, known_content_hash(resolved.model) or ""),
        fingerprint_digest=digest,
        files=(),
        command=(),
        created="",
        commit=None,
    )
    return Artifact(folder, manifest, resolved)


def test_a_saved_curve_loads_with_the_same_points(tmp_path: Path) -> None:
    path = save_cost_curve(artifact(tmp_path), POINTS)
    curve = load_cost_curve(artifact(tmp_path))
    assert curve is not None
    assert curve.points == POINTS
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_no_curve_or_that_of_another_build_is_none(tmp_path: Path) -> None:
    assert load_cost_curve(artifact(tmp_path)) is None
    save_cost_curve(artifact(tmp_path), POINTS)
    assert load_cost_curve(artifact(tmp_path, digest="another")) is None


def test_each_number_and_kind_of_processes_has_its_own(tmp_path: Path) -> None:
    kinds = [(), ("engine.lookahead_parallel=2",), ("engine.lookahead_parallel=3",), ("model.parallelism.tensor=2",)]
    for number, kind in enumerate(kinds, start=1):
        assert load_cost_curve(artifact(tmp_path, *kind)) is None
        save_cost_curve(artifact(tmp_path, *kind), (CostPoint(1, 1, 128, number / 100),))
    for number, kind in enumerate(kinds, start=1):
        curve = load_cost_curve(artifact(tmp_path, *kind))
        assert curve is not None
        assert curve.points[0].seconds == number / 100


@pytest.mark.parametrize("text", ["", "{}", '{"fingerprint_digest": "d", "points": []}'])
def test_a_damaged_file_is_a_build_error_with_the_command_that_fixes_it(tmp_path: Path, text: str) -> None:
    save_cost_curve(artifact(tmp_path), POINTS).write_text(text)
    with pytest.raises(BuildError, match="--cost-curve"):
        load_cost_curve(artifact(tmp_path))
