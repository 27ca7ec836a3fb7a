"""Stored cost curves are found by weights, machine and number of processes, and state the load of the machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.checkpoint.fetch import known_content_hash
from pipeline.config.resolution import resolve_config
from pipeline.config.threads import NUM_THREADS
from pipeline.decoding.planning.cost import CostPoint
from pipeline.engine import cost_curve
from pipeline.engine.artifact import Artifact, Manifest
from pipeline.engine.cost_curve import cost_curve_path, cost_key, load_cost_curve, save_cost_curve
from pipeline.engine.machine_load import MachineLoad
from pipeline.engine.torch.build import fingerprint

POINTS = (CostPoint(1, 1, 128, 0.01), CostPoint(8, 1, 128, 0.02))


IDLE = MachineLoad(0.0, 2)


def artifact(folder: Path, *overrides: str, profile: str = "latency") -> Artifact:
    resolved = resolve_config("tiny-random-llama", profile, ("backend=torch", "device=cpu", *overrides))
    manifest = Manifest(
        model="tiny-random-llama",
        profile=profile,
        fingerprint=fingerprint(resolved, known_content_hash(resolved.model) or ""),
        fingerprint_digest="digest",
        files=(),
        command=(),
        created="",
        commit=None,
    )
    return Artifact(folder / profile, manifest, resolved)


def test_a_saved_curve_loads_with_the_same_points(tmp_path: Path) -> None:
    save_cost_curve(artifact(tmp_path), POINTS, MachineLoad(1 / 3, 2))
    stored = load_cost_curve(artifact(tmp_path))
    assert stored is not None
    assert stored.curve.points == POINTS
    assert stored.others == 0.33
    assert [entry.name for entry in tmp_path.iterdir()] == [".costs"]


def test_profiles_share_a_curve_whatever_their_limits(tmp_path: Path) -> None:
    save_cost_curve(artifact(tmp_path), POINTS, IDLE)
    for other in (artifact(tmp_path, profile="throughput"), artifact(tmp_path, "engine.max_batch_size=2")):
        stored = load_cost_curve(other)
        assert stored is not None
        assert stored.curve.points == POINTS


def test_another_quantization_has_a_curve_of_its_own(tmp_path: Path) -> None:
    save_cost_curve(artifact(tmp_path), POINTS, IDLE)
    assert load_cost_curve(artifact(tmp_path, "engine.quantization=int8")) is None


def test_another_checkpoint_or_machine_has_a_curve_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = artifact(tmp_path)
    save_cost_curve(mine, POINTS, IDLE)
    print_ = mine.manifest.fingerprint.model_copy(update={"checkpoint": "another"})
    assert load_cost_curve(replace(mine, manifest=mine.manifest.model_copy(update={"fingerprint": print_}))) is None
    monkeypatch.setattr(cost_curve, "cpu_name", lambda: "another")
    assert load_cost_curve(mine) is None


def test_on_a_gpu_the_key_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_name", lambda number: ["first", "second"][number])
    mine = artifact(tmp_path)
    assert cost_key(replace(mine, resolved=mine.resolved.model_copy(update={"device": "cuda"}))).processor == "first"


def test_each_number_of_threads_has_a_curve_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_curve, "available_cores", lambda: 6)
    monkeypatch.setattr("pipeline.config.threads.available_cores", lambda: 6)
    paths = set()
    for threads, settings in [(None, ()), ("6", ()), ("2", ()), (None, ("server.replicas=2",))]:
        monkeypatch.setenv(NUM_THREADS, threads or "")
        paths.add(cost_curve_path(artifact(tmp_path, *settings)))
    assert len(paths) == 3


def test_each_number_and_kind_of_processes_has_its_own(tmp_path: Path) -> None:
    kinds = [(), ("engine.lookahead_parallel=2",), ("engine.lookahead_parallel=3",), ("model.parallelism.tensor=2",)]
    for number, kind in enumerate(kinds, start=1):
        assert load_cost_curve(artifact(tmp_path, *kind)) is None
        save_cost_curve(artifact(tmp_path, *kind), (CostPoint(1, 1, 128, number / 100),), IDLE)
    for number, kind in enumerate(kinds, start=1):
        stored = load_cost_curve(artifact(tmp_path, *kind))
        assert stored is not None
        assert stored.points[0].seconds == number / 100


def test_the_file_says_whether_the_machine_was_busy(tmp_path: Path) -> None:
    num_cores = cost_key(artifact(tmp_path)).num_cores
    for others in (0.0, 0.25 * num_cores):  # the least time of three repeats is hardly longer
        idle = save_cost_curve(artifact(tmp_path), POINTS, MachineLoad(others, num_cores))
        assert not idle.is_disturbed
        assert idle.to_text() == f"measured while other programs used {others:.1f} of {num_cores} cores"
    save_cost_curve(artifact(tmp_path), POINTS, MachineLoad(0.7 * num_cores, num_cores))
    stored = load_cost_curve(artifact(tmp_path))
    assert stored is not None
    assert stored.is_disturbed
    assert f"{0.7 * num_cores:.1f} of {num_cores} cores" in stored.to_text()
    assert "lookahead engine" in stored.to_text()


@pytest.mark.parametrize("text", ["", "{}", '{"key": "d", "points": []}'])
def test_a_damaged_file_counts_as_none(tmp_path: Path, text: str) -> None:
    save_cost_curve(artifact(tmp_path), POINTS, IDLE)
    cost_curve_path(artifact(tmp_path)).write_text(text)
    assert load_cost_curve(artifact(tmp_path)) is None
