"""Memory needs of shipped models, and the setting with which a model fits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.config.folders import folders
from pipeline.config.hardware import Hardware
from pipeline.config.resolution import resolve_config
from pipeline.config.schema import ResolvedConfig
from pipeline.engine import memory
from pipeline.server.memory_fit import kv_bytes, memory_fit, serving_bytes
from tests.command_line import exit_code
from tests.unit.engine.torch.lean.models import lean_engine, tiny_model

WHERE = folders({})
GB = 10**9
NO_GPU = Hardware(gpu=None, compute_capability=0, has_tensorrt_llm=False)


def on_cpu(model: str, profile: str, *more: str) -> ResolvedConfig:
    overrides = ("device=cpu", "backend=torch", *more)
    return resolve_config(model, profile, overrides, where=WHERE, hardware=NO_GPU, backend_rules=False)


def test_the_kv_cache_counts_layers_heads_slots_and_positions() -> None:
    resolved = resolve_config("smollm2-135m", "latency", ("device=cpu", "backend=torch"), where=WHERE)
    assert kv_bytes(resolved) == 2 * 30 * 3 * 64 * 4 * 8 * 4096
    assert kv_bytes(resolve_config("tiny-random-llama", "latency", ("device=cpu",), where=WHERE)) == 0


def test_the_kv_cache_is_that_of_the_engine(tmp_path: Path) -> None:
    """A model that fits by the estimate was refused when its KV cache was made."""
    engine = lean_engine(tiny_model("all heads"), "float32", tmp_path, 1)
    plan, limits = engine._plan, engine.limits
    resolved = resolve_config("smollm2-135m", "latency", ("device=cpu", "backend=torch"), where=WHERE)
    assert resolved.model.shape is not None
    sizes = {"num_layers": plan.num_layers, "num_key_value_heads": plan.num_kv_heads, "head_size": plan.head_dim}
    model = resolved.model.model_copy(update={"shape": resolved.model.shape.model_copy(update=sizes)})
    lengths = {"max_batch_size": limits.max_batch_size, "max_seq_len": limits.max_seq_len}
    limited = resolved.with_settings("engine", **lengths)
    assert kv_bytes(limited.model_copy(update={"model": model})) == 2 * engine._cache.keys.nbytes


@pytest.mark.parametrize(
    ("setting", "architecture", "head_bytes"),
    [
        ("model.dtype=bfloat16", "LlamaForCausalLM", 64 * 2 + 4),  # int16 with a scale
        ("model.dtype=bfloat16", "StableLmForCausalLM", 64 * 2),
        ("engine.quantization=int8", "LlamaForCausalLM", 64 * 2 + 4),
        ("engine.quantization=int8", "StableLmForCausalLM", 64 * 4),
    ],
)
def test_the_kv_cache_of_the_lean_pass_is_smaller_beside_smaller_weights(
    setting: str, architecture: str, head_bytes: int
) -> None:
    overrides = ("device=cpu", "backend=torch", setting, f"model.architecture={architecture}")
    resolved = resolve_config("smollm2-135m", "latency", overrides, where=WHERE)
    assert kv_bytes(resolved) == 2 * 30 * 3 * head_bytes * 8 * 4096


@pytest.mark.parametrize(
    ("available", "setting"),
    [(79, ""), (45, "model.dtype=bfloat16"), (30, "engine.quantization=int8"), (28, None)],
)
def test_the_setting_that_changes_least_is_named(available: int, setting: str | None) -> None:
    resolved = on_cpu("llama2-7b", "latency")
    fit = memory_fit(resolved, available * GB)
    assert fit.setting == setting
    assert fit.needed_bytes == serving_bytes(4 * 6_738_415_616) + kv_bytes(resolved)
    assert kv_bytes(resolved) == 2 * 32 * 32 * 128 * 4 * 8 * 4096


def test_a_built_engine_counts_with_its_size() -> None:
    resolved = on_cpu("smollm2-135m", "throughput")
    needed = serving_bytes(5 * GB)
    assert memory_fit(resolved, needed, 5 * GB) == (needed, "")
    unknown = resolved.model_copy(update={"model": resolved.model.model_copy(update={"num_parameters": 1})})
    for config in (resolved, unknown):
        assert memory_fit(config, needed - 1, 5 * GB) == (needed, "model.dtype=bfloat16")
        assert memory_fit(config, needed // 3, 5 * GB).setting == "engine.quantization=int8"


@pytest.mark.parametrize("override", ["model.dtype=bfloat16", "model.architecture=MixtralForCausalLM"])
def test_no_setting_is_named_that_a_build_refuses(override: str) -> None:
    resolved = on_cpu("llama2-7b", "latency", override)
    assert memory_fit(resolved, 29 * GB).setting is None
    assert memory_fit(resolved, 20 * GB, 20 * GB).setting != "engine.quantization=int8"


def test_a_large_kv_cache_fits_in_sixteen_bit() -> None:
    assert memory_fit(on_cpu("smollm2-135m", "throughput"), 5 * GB).setting == "model.dtype=bfloat16"


def test_models_and_profiles_say_what_fits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 5 * GB)
    for words in (["models"], ["profiles"], ["profiles", "--model", "llama2-7b"]):
        exit_code(*words, "--json")
    lines = capsys.readouterr().out
    decoder, found = json.JSONDecoder(), []
    while lines.strip():
        value, end = decoder.raw_decode(lines.lstrip())
        found.append({entry["name"]: entry["setting"] for entry in value})
        lines = lines.lstrip()[end:]
    models, small, large = found
    assert models["smollm2-135m"] == ""
    assert models["llama2-13b"] is None
    assert (small["latency"], small["throughput"]) == ("", "model.dtype=bfloat16")
    assert set(large.values()) == {None}
