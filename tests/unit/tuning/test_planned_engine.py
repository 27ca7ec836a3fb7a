"""An adaptive planner gets its cost curve with the build: measured once for all profiles of a model."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from pipeline.config.folders import Folders
from pipeline.config.resolution import resolve_config
from pipeline.config.schema import ResolvedConfig
from pipeline.decoding.sources.recycling import RecyclingSource
from pipeline.engine.artifact import Artifact
from pipeline.engine.cost_curve import load_cost_curve, save_cost_curve
from pipeline.engine.first_rows import load_first_rows
from pipeline.engine.machine_load import MachineLoad
from pipeline.engine.scheduler_factory import create_scheduler
from pipeline.engine.torch.load import load_engine
from pipeline.errors import BuildError
from pipeline.tuning import planned_engine as module
from pipeline.tuning.cost_curve import COARSE
from pipeline.tuning.planned_engine import (
    COMPUTING,
    LOADING,
    MEASURING,
    MOST_ROWS,
    opening_of,
    planned_engine,
    with_measured_limits,
)


def tiny(*overrides: str, profile: str = "latency") -> ResolvedConfig:
    return resolve_config("tiny-random-llama", profile, ("backend=torch", "device=cpu", *overrides))


def measured(where: Folders, *overrides: str, profile: str = "latency", retake: bool = False) -> tuple[Path, bool]:
    """The folder of the engine, and whether its passes were measured."""
    notes: list[str] = []
    result = planned_engine(tiny(*overrides, profile=profile), where, retake=retake, note=notes.append)
    return result.artifact.folder, MEASURING in notes


def test_the_curve_is_measured_once_for_all_limits_profiles_and_builds(where: Folders, tmp_path: Path) -> None:
    where = replace(where, engines=tmp_path)  # the other tests of this file build the same engine
    folder, first = measured(where)
    assert first
    assert not measured(where)[1]
    assert not measured(where, "engine.max_batch_size=2")[1]
    assert not measured(where, profile="throughput")[1]
    assert measured(where, "engine.quantization=int8")[1]
    assert len(list((folder.parent / ".costs").iterdir())) == 2


@pytest.mark.parametrize("stage", [LOADING, COMPUTING])
def test_an_engine_that_is_removed_meanwhile_gives_a_sentence(where: Folders, tmp_path: Path, stage: str) -> None:
    def remove(text: str) -> None:
        if text == stage:
            shutil.rmtree(tmp_path)

    with pytest.raises(BuildError, match="was removed during a measurement"):
        planned_engine(tiny(), replace(where, engines=tmp_path), note=remove)


def test_a_damaged_curve_is_measured_again(where: Folders) -> None:
    """`bench --cost-curve` was the remedy of the error, and failed with the same error."""
    folder, _ = measured(where)
    (curve,) = (folder.parent / ".costs").iterdir()
    whole = curve.read_bytes()
    curve.write_bytes(whole[:100])
    assert measured(where)[1]
    assert len(curve.read_bytes()) > 100


def test_the_loops_are_compiled_for_an_engine_that_is_there_already_too(
    where: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(where)
    compiled: list[object] = []
    monkeypatch.setattr(module, "ensure_compiled", compiled.append)

    measured(where)

    assert len(compiled) == 1


def test_the_engine_is_loaded_once_and_progress_is_shown_by_batch_size(where: Folders, tmp_path: Path) -> None:
    notes: list[str] = []
    planned_engine(tiny(), replace(where, engines=tmp_path), note=notes.append)
    stages = [note for note in notes if note in (LOADING, COMPUTING, MEASURING)]
    assert stages == [LOADING, COMPUTING, MEASURING]
    assert sum(note.startswith(MEASURING) for note in notes) == 1 + len(COARSE.batch_sizes)


def test_what_was_measured_on_a_busy_machine_is_measured_again_when_asked_for_and_less_busy(
    where: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = planned_engine(tiny(), where).artifact
    stored = load_cost_curve(artifact)
    assert stored is not None
    num_cores = stored.key.num_cores
    save_cost_curve(artifact, stored.curve.points, MachineLoad(float(num_cores), num_cores))

    monkeypatch.setattr(module, "machine_load", lambda: MachineLoad(0.0, num_cores))
    assert not measured(where)[1], "a server that starts keeps what there is"
    monkeypatch.setattr(module, "machine_load", lambda: MachineLoad(0.6 * num_cores, num_cores))
    assert not measured(where, retake=True)[1], "it would be hardly better"
    monkeypatch.setattr(module, "machine_load", lambda: MachineLoad(0.4 * num_cores, num_cores))
    assert measured(where, retake=True)[1], "a machine that is never idle has a curve of its best moments"


def test_what_was_measured_on_an_idle_machine_stays(where: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = planned_engine(tiny(), where).artifact
    stored = load_cost_curve(artifact)
    assert stored is not None
    save_cost_curve(artifact, stored.curve.points, MachineLoad(0.0, stored.key.num_cores))
    monkeypatch.setattr(module, "machine_load", lambda: MachineLoad(0.0, 2))
    assert not measured(where, retake=True)[1]


def test_the_engine_that_is_measured_holds_the_grid_and_no_more(where: Folders) -> None:
    artifact = planned_engine(tiny("drafting.planner=fixed"), where).artifact
    limits = with_measured_limits(artifact, COARSE, 4).resolved.profile.engine
    assert (limits.max_batch_size, limits.max_num_tokens, limits.max_draft_tokens) == (4, 128, 64)
    assert limits.max_seq_len <= artifact.resolved.model.max_position_embeddings


def test_the_scheduler_plans_by_it(where: Folders) -> None:
    artifact = planned_engine(tiny(), where).artifact
    stored = load_cost_curve(artifact)

    assert stored is not None
    curve = stored.curve
    assert curve.seconds_up_to(64, 1, 128)[-1] >= curve.seconds_up_to(1, 1, 128)[-1] > 0
    create_scheduler(artifact, load_engine(artifact))


def test_a_fixed_planner_needs_none(where: Folders, tmp_path: Path) -> None:
    folder, was_measured = measured(replace(where, engines=tmp_path), "drafting.planner=fixed")

    assert not was_measured
    assert not (folder.parent / ".costs").exists()


def test_first_rows_are_computed_once_for_profiles_that_recycle(where: Folders, tmp_path: Path) -> None:
    where = replace(where, engines=tmp_path)
    fixed = "drafting.planner=fixed"
    notes: list[str] = []
    trie_only = planned_engine(tiny(fixed, 'drafting.sources=[{"kind": "trie"}]'), where, note=notes.append)
    assert load_first_rows(trie_only.artifact) is None
    artifact = planned_engine(tiny(fixed), where, note=notes.append).artifact
    assert planned_engine(tiny(fixed, profile="throughput"), where, note=notes.append).artifact is not None
    assert notes.count(COMPUTING) == 1
    stored = load_first_rows(artifact)
    engine = load_engine(artifact)
    assert stored is not None
    assert len(stored.rows.ids) == min(MOST_ROWS, stored.vocab_size) == engine.limits.vocab_size
    (source,) = [each for each in create_scheduler(artifact, engine).drafter.sources if each.name == "recycling"]
    assert isinstance(source, RecyclingSource)
    assert np.array_equal(source.first_rows.ids, stored.rows.ids)


def test_the_models_turn_opens_as_its_template_says(where: Folders) -> None:
    artifact = planned_engine(tiny(), where).artifact
    tokenizer = AutoTokenizer.from_pretrained(artifact.tokenizer_dir)
    conversation = [{"role": "user", "content": "x"}]
    whole = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    opening = opening_of(artifact, 512)
    assert len(opening) < len(tokenizer.encode(whole, add_special_tokens=False))
    assert whole.endswith(tokenizer.decode(opening[-3:]))


def test_a_template_with_tokens_that_the_model_lacks_is_named(where: Folders) -> None:
    artifact = planned_engine(tiny(), where).artifact
    with pytest.raises(BuildError, match=r"has token 2 \('<\|turn\|>'\), and the model's vocabulary is 0 \.\. 1"):
        opening_of(artifact, 2)


def copied(where: Folders, folder: Path) -> Artifact:
    """A copy of the tiny engine whose files a test may change."""
    artifact = planned_engine(tiny(), where).artifact
    shutil.copytree(artifact.folder, folder)
    return replace(artifact, folder=folder)


def change_json(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values), encoding="utf-8")


@pytest.mark.parametrize("bos", [300, None])
def test_without_a_template_a_pass_begins_with_a_token_that_the_model_has(
    bos: int | None, where: Folders, tmp_path: Path
) -> None:
    artifact = copied(where, tmp_path / "engine")
    (artifact.tokenizer_dir / "chat_template.jinja").unlink()
    change_json(artifact.engine_dir / "config.json", bos_token_id=bos)
    assert opening_of(artifact, 300).tolist() == [0]


def test_a_template_that_adds_nothing_gives_a_token_too(where: Folders, tmp_path: Path) -> None:
    artifact = copied(where, tmp_path / "engine")
    (artifact.tokenizer_dir / "chat_template.jinja").write_text("{{ messages[0]['content'] }}", encoding="utf-8")
    assert opening_of(artifact, 512).tolist() == [0], "the BOS token"
    change_json(artifact.tokenizer_dir / "tokenizer_config.json", bos_token=None)
    change_json(artifact.engine_dir / "config.json", bos_token_id=7)
    assert opening_of(artifact, 512).tolist() == [7]


def test_an_engine_without_drafts_needs_no_first_rows(where: Folders) -> None:
    overrides = ("engine.max_draft_tokens=0", "drafting.max_draft_tokens=0", "drafting.strategy=none")
    result = planned_engine(tiny(*overrides, "engine.quantization=none", "drafting.planner=fixed"), where)
    assert result.artifact.resolved.profile.engine.max_draft_tokens == 0
