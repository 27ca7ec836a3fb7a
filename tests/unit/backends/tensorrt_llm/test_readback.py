"""Results of a plan's stages are compared with the plan; differences are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.backends.tensorrt_llm.build import execute
from pipeline.backends.tensorrt_llm.plan import plan_for
from pipeline.backends.tensorrt_llm.readback import checkpoint_differences
from pipeline.checkpoint.fetch import fetch
from pipeline.errors import BuildError, CheckpointError
from tests.trt_configs import trt_config
from tests.unit.backends.tensorrt_llm.stand_in import StandIn, build, silent


@pytest.mark.parametrize(
    ("which", "change", "text"),
    [
        ("checkpoint", {"rotary_base": 500000.0}, "rotary_base 500000.0 instead of 10000.0"),
        ("checkpoint", {"dtype": "float32"}, "dtype float32 instead of bfloat16"),
        ("engine", {"version": "1.1.0"}, "version 1.1.0 instead of 1.2"),
        ("engine", {"version": None}, "version None instead of 1.2"),
        ("engine", {"build_config": {}}, "build_config.max_batch_size absent instead of 4"),
    ],
)
def test_what_comes_out_wrong_is_refused_and_not_taken_for_finished(where, which, change, text):
    def spoil(name: str, config: dict) -> None:
        if name == which:
            config |= change

    with pytest.raises(BuildError, match=text.replace(".", r"\.")):
        build(where, lambda plan: StandIn(plan, spoil))
    again, _ = build(where, StandIn)
    assert f"{'convert' if which == 'checkpoint' else 'build lookahead'}" in again.calls


def test_a_base_that_is_not_written_down_is_the_default(where):
    def without_base(name: str, config: dict) -> None:
        config.pop("rotary_base", None)

    run, _ = build(where, lambda plan: StandIn(plan, without_base))
    assert run.calls == ["convert", "build lookahead"]
    plan = plan_for(trt_config("tiny-random-llama"), where)
    expected = {**plan.conversion.expected, "rotary_base": 500042.0}
    assert "rotary_base 10000.0 instead of 500042.0" in checkpoint_differences(plan.conversion.output, expected)


def test_a_changed_size_is_reported(where):
    def spoil(name: str, config: dict) -> None:
        if name == "engine":
            config["build_config"]["max_seq_len"] -= 15

    with pytest.raises(BuildError, match=r"max_seq_len 4081 instead of 4096"):
        build(where, lambda plan: StandIn(plan, spoil))


@pytest.mark.parametrize(
    ("place", "found", "text"),
    [
        ("pretrained_config", {"logits_dtype": "float16"}, "pretrained_config.logits_dtype float16 instead of float32"),
        ("pretrained_config", {"dtype": "float16"}, "pretrained_config.dtype float16 instead of bfloat16"),
        (
            "pretrained_config",
            {"quantization": {"quant_algo": "W8A16"}},
            "pretrained_config.quantization.quant_algo W8A16 instead of None",
        ),
        (
            "pretrained_config",
            {"mapping": {"world_size": 2, "tp_size": 1, "pp_size": 2}},
            "pretrained_config.mapping.tp_size 1 instead of 2",
        ),
        ("plugin_config", {"reduce_fusion": False}, "build_config.plugin_config.reduce_fusion False instead of True"),
        ("plugin_config", {"moe_plugin": "float16"}, None),  # asked for as auto
        ("plugin_config", {"gemm_plugin": None}, "build_config.plugin_config.gemm_plugin None instead of bfloat16"),
        ("build_config", {"profiling_verbosity": "none"}, "build_config.profiling_verbosity none instead of detailed"),
        ("build_config", {"opt_num_tokens": 1}, "build_config.opt_num_tokens 1 instead of"),
        ("build_config", {"output_timing_cache": "elsewhere"}, None),
    ],
)
def test_all_that_was_asked_for_is_read_back_from_the_engine(where, place, found, text):
    def spoil(name: str, config: dict) -> None:
        if name == "engine":
            (config["build_config"] if place == "plugin_config" else config)[place] |= found

    flags = ("reduce_fusion=enable", "moe_plugin=auto", "profiling_verbosity=detailed")
    overrides = ("model.parallelism.tensor=2", *(f".build_flags.{flag}" for flag in flags))
    if text is None:
        build(where, lambda plan: StandIn(plan, spoil), *overrides)
        return
    with pytest.raises(BuildError, match=text.replace(".", r"\.")):
        build(where, lambda plan: StandIn(plan, spoil), *overrides)


def test_a_missing_rank_is_reported(where):
    class WithoutRanks(StandIn):
        def write(self, folder: Path, config: dict, suffix: str, name: str) -> None:
            super().write(folder, config, suffix, name)
            (folder / f"rank0.{suffix}").unlink()

    with pytest.raises(BuildError, match=r"no rank0\.safetensors"):
        build(where, WithoutRanks)


def test_another_model_than_planned_is_refused(where):
    resolved = trt_config("tiny-random-llama")
    checkpoint = fetch(resolved.model, where.cache)
    shaped = trt_config(
        "tiny-random-llama", "latency", "model.shape={hidden_size: 64, intermediate_size: 128, num_layers: 3, "
        "num_attention_heads: 4, num_key_value_heads: 2, head_size: 16, vocab_size: 512}",
    )  # fmt: skip
    plan = plan_for(shaped, where, checkpoint.content_hash)
    with pytest.raises(CheckpointError, match="num_layers 2 instead of 3"):
        execute(plan, shaped, checkpoint, silent, where.engines / "artifact", StandIn(plan))


def test_each_rank_has_its_file_and_no_mapping_means_one_rank(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "rank0.safetensors").touch()
    assert checkpoint_differences(tmp_path, {}) == []
    mapping = {"mapping": {"world_size": 4, "tp_size": 2, "cp_size": 2}}
    (tmp_path / "config.json").write_text(json.dumps(mapping))
    assert checkpoint_differences(tmp_path, mapping) == ["no rank1.safetensors"]


@pytest.mark.parametrize(("expected", "found"), [(1, True), (0, False), (True, 1), (False, 0)])
def test_a_truth_value_is_no_number(tmp_path, expected, found):
    (tmp_path / "rank0.safetensors").touch()
    (tmp_path / "config.json").write_text(json.dumps({"key": found}))
    assert checkpoint_differences(tmp_path, {"key": expected}) == [f"key {found} instead of {expected}"]
