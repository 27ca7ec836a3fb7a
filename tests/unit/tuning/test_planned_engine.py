"""An adaptive planner gets its cost curve with the build, measured once per build."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from pipeline.config.places import Places
from pipeline.config.resolution import resolve_config
from pipeline.engine.artifact import load_artifact
from pipeline.engine.cost_curve import cost_curve_path, load_cost_curve
from pipeline.engine.create import create_scheduler
from pipeline.engine.parallel import ParallelEngine
from pipeline.engine.torch.load import load_engine
from pipeline.tuning.planned_engine import planned_engine


def tiny(*overrides: str) -> object:
    return resolve_config("tiny-random-llama", "latency", ("backend=torch", "device=cpu", *overrides))


def measured(where: Places, *overrides: str) -> tuple[Path, list[str]]:
    notes: list[str] = []
    result = planned_engine(tiny(*overrides), where, note=notes.append)  # type: ignore[arg-type]
    return result.artifact.folder, [note for note in notes if "passes cost" in note]


def test_the_curve_is_measured_once_and_again_after_a_new_build(where: Places, tmp_path: Path) -> None:
    where = replace(where, engines=tmp_path)  # the other tests of this file build the same engine
    folder, first = measured(where)
    _, second = measured(where)
    _, changed = measured(where, "engine.max_batch_size=2")

    assert len(first) == 1
    assert not second
    assert len(changed) == 1
    assert (folder / "cost_curve.json").is_file()


def test_each_number_of_processes_has_a_curve_of_its_own_and_leaves_the_engine_to_be_loaded(where: Places) -> None:
    measured(where)
    threads = torch.get_num_threads()
    folder, parallel = measured(where, "engine.lookahead_parallel=2")
    plain = planned_engine(tiny(), where).artifact  # type: ignore[arg-type]
    _, again = measured(where, "engine.lookahead_parallel=2")
    artifact = load_artifact(folder, where.cache)

    assert (len(parallel), len(again)) == (1, 0)
    assert cost_curve_path(plain) != cost_curve_path(artifact)
    assert load_cost_curve(plain) != load_cost_curve(artifact)
    assert torch.get_num_threads() == threads
    engine = load_engine(artifact)
    assert isinstance(engine, ParallelEngine)
    engine.close()


def test_the_scheduler_plans_by_it(where: Places) -> None:
    artifact = planned_engine(tiny(), where).artifact  # type: ignore[arg-type]
    curve = load_cost_curve(artifact)

    assert curve is not None
    assert curve.seconds(64, 1, 128) >= curve.seconds(1, 1, 128) > 0
    create_scheduler(artifact, load_engine(artifact))


def test_a_fixed_planner_needs_none(where: Places) -> None:
    folder, notes = measured(where, "drafting.planner=fixed", "engine.max_batch_size=3")

    assert not notes
    assert not (folder / "cost_curve.json").exists()
