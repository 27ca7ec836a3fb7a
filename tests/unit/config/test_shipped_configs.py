"""Every shipped model under every profile."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from pipeline.config.hardware import Hardware
from pipeline.config.resolution import dump_resolved, load_profile, load_resolved, resolve_config
from tests.unit.config.shipped import CPU, H100, MODELS, PROFILES, SHIPPED


def test_the_promised_models_and_profiles_are_shipped() -> None:
    assert {"smollm2-135m", "llama2-7b", "llama2-13b", "codellama-7b"} <= set(MODELS)
    assert {"llama3.1-8b", "qwen2.5-coder-7b", "mistral-7b", "tiny-random-llama"} <= set(MODELS)
    assert set(PROFILES) == {"latency", "throughput", "balanced"}


@pytest.mark.parametrize("hardware", [CPU, H100], ids=["cpu", "h100"])
@pytest.mark.parametrize(("model", "profile"), list(itertools.product(MODELS, PROFILES)))
def test_every_model_resolves_under_every_profile(model: str, profile: str, hardware: Hardware, tmp_path: Path) -> None:
    resolved = resolve_config(model, profile, where=SHIPPED, hardware=hardware)

    assert (resolved.model.name, resolved.profile.name) == (model, profile)
    assert resolved.device == ("cpu" if hardware is CPU else "cuda")
    assert resolved.backend == ("torch" if hardware is CPU else "tensorrt_llm")
    assert resolved.dtype == ("float32" if hardware is CPU else resolved.model.gpu_dtype)
    assert resolved.lookahead.origin != "unstated"
    assert "auto" not in (resolved.profile.device, resolved.profile.backend)
    path = tmp_path / "resolved.yaml"
    path.write_text(dump_resolved(resolved), encoding="utf-8")
    assert load_resolved(path) == resolved
    assert dump_resolved(load_resolved(path)) == path.read_text(encoding="utf-8")
    path.write_text(resolved.model_dump_json(), encoding="utf-8")
    assert load_resolved(path) == resolved, "JSON loads as well as YAML"


@pytest.mark.parametrize("path", sorted((SHIPPED.home / "configs").rglob("*.yaml")), ids=lambda path: path.stem)
def test_every_yaml_opens_with_what_it_is_and_how_to_use_it(path: Path) -> None:
    head = [line for line in path.read_text(encoding="utf-8").splitlines()[:6] if line.startswith("#")]
    assert [line.split()[1] for line in head[:3]] == ["What:", "Needs:", "Use:"]
    assert any("verride" in line for line in head)


def test_profiles_differ_where_it_matters() -> None:
    latency, balanced, throughput = (load_profile(name, SHIPPED) for name in ("latency", "balanced", "throughput"))
    assert latency.engine.max_batch_size < balanced.engine.max_batch_size < throughput.engine.max_batch_size
    assert latency.drafting.max_draft_tokens > balanced.drafting.max_draft_tokens > throughput.drafting.max_draft_tokens
    assert latency.tensorrt_llm.speculation == "lookahead"


@pytest.mark.parametrize(
    ("model", "profile", "w", "n", "g", "draft_len"),
    [
        ("llama2-7b", "latency", 15, 5, 15, 119),
        ("llama2-13b", "latency", 10, 5, 10, 79),
        ("qwen2.5-coder-7b", "latency", 8, 8, 8, 111),
        ("qwen2.5-coder-7b", "balanced", 3, 8, 3, 41),
        ("llama3.1-8b", "throughput", 4, 3, 4, 15),
    ],
)
def test_lookahead_values_are_those_of_their_origin(
    model: str, profile: str, w: int, n: int, g: int, draft_len: int
) -> None:
    lookahead = resolve_config(model, profile, where=SHIPPED, hardware=CPU).lookahead
    found = (lookahead.max_window_size, lookahead.max_ngram_size, lookahead.max_verification_set_size)
    assert found == (w, n, g)
    assert lookahead.max_draft_len == draft_len
