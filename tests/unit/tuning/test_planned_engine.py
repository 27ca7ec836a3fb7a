"""An adaptive planner gets its cost curve with the build, measured once per build."""

from __future__ import annotations

from pathlib import Path

from pipeline.config.places import Places
from pipeline.config.resolution import resolve_config
from pipeline.engine.cost_curve import COST_CURVE, load_cost_curve
from pipeline.engine.torch.load import create_scheduler
from pipeline.tuning.planned_engine import planned_engine


def tiny(*overrides: str) -> object:
    return resolve_config("tiny-random-llama", "latency", ("backend=torch", "device=cpu", *overrides))


def measured(where: Places, *overrides: str) -> tuple[Path, list[str]]:
    notes: list[str] = []
    result = planned_engine(tiny(*overrides), where, note=notes.append)  # type: ignore[arg-type]
    return result.artifact.folder, [note for note in notes if "passes cost" in note]


def test_the_curve_is_measured_once_and_again_after_a_new_build(where: Places) -> None:
    folder, first = measured(where)
    _, second = measured(where)
    _, changed = measured(where, "engine.max_batch_size=2")

    assert len(first) == 1
    assert not second
    assert len(changed) == 1
    assert (folder / COST_CURVE).is_file()


def test_the_scheduler_plans_by_it(where: Places) -> None:
    artifact = planned_engine(tiny(), where).artifact  # type: ignore[arg-type]
    curve = load_cost_curve(artifact.folder, artifact.manifest.fingerprint_digest)

    assert curve is not None
    assert curve.seconds(64, 1, 128) >= curve.seconds(1, 1, 128) > 0
    create_scheduler(artifact)


def test_a_fixed_planner_needs_none(where: Places) -> None:
    folder, notes = measured(where, "drafting.planner=fixed", "engine.max_batch_size=3")

    assert not notes
    assert not (folder / COST_CURVE).exists()
