"""Memory needs of shipped models, and the setting with which a model fits."""

from __future__ import annotations

import json

import pytest

from pipeline import cli
from pipeline.config.places import places
from pipeline.config.resolution import resolve_config
from pipeline.engine import memory
from pipeline.server.memory_fit import kv_bytes, memory_fit, serving_bytes

WHERE = places({})
GB = 10**9


def test_the_kv_cache_counts_layers_heads_slots_and_positions() -> None:
    resolved = resolve_config("smollm2-135m", "latency", ("device=cpu", "backend=torch"), where=WHERE)
    assert kv_bytes(resolved) == 2 * 30 * 3 * 64 * 4 * 4 * 4096
    assert kv_bytes(resolve_config("tiny-random-llama", "latency", ("device=cpu",), where=WHERE)) == 0


@pytest.mark.parametrize(
    ("setting", "architecture", "size"),
    [
        ("model.dtype=bfloat16", "LlamaForCausalLM", 2),
        ("model.dtype=bfloat16", "StableLmForCausalLM", 2),
        ("engine.quantization=int8", "LlamaForCausalLM", 2),
        ("engine.quantization=int8", "StableLmForCausalLM", 4),
    ],
)
def test_the_kv_cache_of_the_lean_pass_is_bfloat16_beside_smaller_weights(
    setting: str, architecture: str, size: int
) -> None:
    overrides = ("device=cpu", "backend=torch", setting, f"model.architecture={architecture}")
    resolved = resolve_config("smollm2-135m", "latency", overrides, where=WHERE)
    assert kv_bytes(resolved) == 2 * 30 * 3 * 64 * size * 4 * 4096


@pytest.mark.parametrize(
    ("available", "setting"),
    [(62, ""), (45, "model.dtype=bfloat16"), (28, "engine.quantization=int8"), (26, None)],
)
def test_the_setting_that_changes_least_is_named(available: int, setting: str | None) -> None:
    fit = memory_fit("llama2-7b", "latency", WHERE, available * GB)
    assert fit.setting == setting
    assert fit.needed_bytes == serving_bytes(4 * 6_738_415_616) + 2 * 32 * 32 * 128 * 4 * 4 * 4096


def test_a_large_kv_cache_fits_in_sixteen_bit() -> None:
    assert memory_fit("smollm2-135m", "throughput", WHERE, 4 * GB).setting == "model.dtype=bfloat16"


def test_models_and_profiles_say_what_fits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 4 * GB)
    for words in (["models"], ["profiles"], ["profiles", "--model", "llama2-7b"]):
        with pytest.raises(SystemExit):
            cli.main((*words, "--json"))
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
