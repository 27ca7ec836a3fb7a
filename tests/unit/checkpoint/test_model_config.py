"""Configs of checkpoints as transformers reads them, and the errors in them before and after the load of weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from pipeline.checkpoint.model_config import check_config, check_model, check_positions, read_config
from pipeline.errors import CheckpointError
from tests.logs import Logs
from tests.unit.checkpoint.sources import loaded

ABOVE_0 = "should be a number above 0"
WINDOW = "should be null, or a whole number from 1 to 2147483647"
TINY: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}


def write_config(folder: Path, architecture: str, changes: Mapping[str, Any]) -> Path:
    """config.json alone; a change to None takes the key away."""
    config = getattr(transformers, architecture).config_class(**TINY).to_dict()
    settings = {name: value for name, value in {**config, **changes}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps({**settings, "architectures": [architecture]}), encoding="utf-8")
    return folder


def checked(folder: Path, architecture: str, max_positions: int = 64) -> None:
    config = read_config(folder, architecture)
    check_config(config, "here")
    check_positions(config, max_positions, "here")


FACTORS = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
LLAMA3 = {
    "rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
SLIDING = ["full_attention", "sliding_attention"]
PHI3 = {"rope_parameters": None, "rope_theta": 10000.0, "original_max_position_embeddings": 24}


@pytest.mark.parametrize(
    ("architecture", "changes", "expected"),
    [
        ("Phi3ForCausalLM", {**PHI3, "rope_scaling": {"type": "yarn", **FACTORS}}, "of type 'longrope'"),
        ("Phi3ForCausalLM", {**PHI3, "rope_scaling": {"type": "longrope", **FACTORS}}, "of type 'longrope'"),
        ("LlamaForCausalLM", {"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "of type 'dynamic'"),
        ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "default", "type": "dynamic"}}, "of type 'dynamic'"),
        ("Gemma3ForCausalLM", {"use_bidirectional_attention": True}, "_attention: true in config.json, so it"),
        ("Qwen2ForCausalLM", {"is_causal": False}, "is_causal: false in config.json, so it"),
        ("BloomForCausalLM", {"slow_but_exact": True, "pretraining_tp": 2}, "slow_but_exact with pretraining_tp 2"),
        ("LlamaForCausalLM", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quant_method 'gptq'"),
        ("LlamaForCausalLM", {"quantization_config": {"quant_method": "awq"}}, "quant_method 'awq'"),
        ("LlamaForCausalLM", {"quantization_config": {"load_in_4bit": True}}, "quant_method None"),
        ("LlamaForCausalLM", {"compression_config": {"quant_method": "compressed-tensors"}}, "(compression_config in"),
        ("LlamaForCausalLM", {"num_attention_heads": 3}, "is not a multiple of the number of attention heads"),
        ("LlamaForCausalLM", {"num_attention_heads": 0}, "modulo by zero"),
        ("LlamaForCausalLM", {"rope_parameters": None, "rope_theta": -5.0}, f"found -5.0; {ABOVE_0}"),
        ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "default", "rope_theta": 0}}, f"found 0; {ABOVE_0}"),
        ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "default", "rope_theta": "big"}}, "found 'big'"),
        (
            "LlamaForCausalLM",
            {"rope_scaling": {"type": "linear", "factor": 0}},
            f"factor in config.json: found 0; {ABOVE_0}",
        ),
        ("LlamaForCausalLM", {"rms_norm_eps": -1.0}, "rms_norm_eps in config.json: found -1.0"),
        ("GPT2LMHeadModel", {"layer_norm_epsilon": -1e-5}, "layer_norm_epsilon in config.json: found -1e-05"),
        ("LlamaForCausalLM", {"layer_norm_eps": "x"}, "layer_norm_eps in config.json: found 'x'; should be a number"),
        ("MistralForCausalLM", {"sliding_window": 0}, f"sliding_window in config.json: found 0; {WINDOW}"),
        ("MistralForCausalLM", {"sliding_window": -1}, f"found -1; {WINDOW}"),
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 10**30}, f"found {10**30}; {WINDOW}"),
        ("MistralForCausalLM", {"sliding_window": 1.5}, "Field 'sliding_window' with value 1.5"),
        ("Qwen2MoeForCausalLM", {"layer_types": SLIDING, "use_sliding_window": False}, "there is no window: set"),
        ("SmolLM3ForCausalLM", {"layer_types": SLIDING, "sliding_window": 7}, "there is no window: set"),
        ("LlamaForCausalLM", {"hidden_size": "32"}, "Field 'hidden_size' expected int, got str"),
    ],
)
def test_what_would_be_computed_wrongly_or_not_at_all_is_refused(
    architecture: str, changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError) as caught:
        checked(write_config(tmp_path, architecture, changes), architecture)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}),
        ("LlamaForCausalLM", {"quantization_config": {"quant_method": "fp8"}}),
        ("BloomForCausalLM", {"slow_but_exact": True}),
        ("BloomForCausalLM", {"pretraining_tp": 2}),
        ("Qwen2ForCausalLM", {"slow_but_exact": True}),  # a setting of BLOOM
        ("LlamaForCausalLM", {"sliding_window": -1}),  # its models have no windows
        ("LlamaForCausalLM", {"sliding_window": "x", "layer_types": ["full_attention"] * 2}),
        ("Qwen2MoeForCausalLM", {"use_sliding_window": False}),
        ("LlamaForCausalLM", {"is_causal": True, "text_config": {}}),
    ],
)
def test_their_harmless_neighbours_are_not(architecture: str, changes: dict[str, Any], tmp_path: Path) -> None:
    checked(write_config(tmp_path, architecture, changes), architecture)


@pytest.mark.parametrize(
    ("architecture", "changes", "longest"),
    [
        ("GPT2LMHeadModel", {}, 64),
        ("OPTForCausalLM", {}, 64),
        ("LlamaForCausalLM", {}, 64),
        ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, 256),  # as Qwen 2.5 tells to
        ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "linear", "factor": 4.0}}, 256),  # Vicuna 16k
        ("LlamaForCausalLM", {"rope_parameters": LLAMA3}, 64),
        ("BloomForCausalLM", {"max_position_embeddings": None}, None),
    ],
)
def test_no_longer_context_is_promised_than_the_checkpoint_has(
    architecture: str, changes: dict[str, Any], longest: int | None, tmp_path: Path
) -> None:
    write_config(tmp_path, architecture, changes)
    checked(tmp_path, architecture, longest or 1_000_000)
    if longest is not None:
        with pytest.raises(
            CheckpointError, match=rf"found {longest + 1}; should be at most {longest}, the context length of here"
        ):
            checked(tmp_path, architecture, longest + 1)


def test_layers_have_the_last_word() -> None:
    """A config class may not show a property of its layers."""
    for architecture, changes in (
        ("Gemma2ForCausalLM", {"use_bidirectional_attention": True}),
        ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}),
        (
            "Gemma3ForCausalLM",
            {"rope_parameters": {"sliding_attention": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}},
        ),
    ):
        model_class = getattr(transformers, architecture)
        check_model(model_class(model_class.config_class(**TINY)), "here")
        with pytest.raises(CheckpointError, match=r"here (has attention|uses rotary)"):
            check_model(model_class(model_class.config_class(**TINY, **changes)), "here")


# --- weights --------------------------------------------------------------------------------------------------------


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    folder = tmp_path / "llama"
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY)).save_pretrained(folder)
    return folder


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_tensors_without_a_place_are_refused_in_one_sentence(llama: Path, logs: Logs) -> None:
    change_tensors(llama, lambda tensors: tensors.update({"model.layers.1.self_attn.q_proj.bias": torch.ones(32)}))
    with pytest.raises(CheckpointError, match=r"not part of a .*: model\.layers\.1\.self_attn\.q_proj.bias \(1 in"):
        loaded(llama)
    assert "LOAD REPORT" not in logs.text


def test_fewer_layers_in_the_config_than_in_the_file_are_refused(llama: Path) -> None:
    write_config(llama, "LlamaForCausalLM", {"num_hidden_layers": 1})
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.input_layernorm\.weight, .* \(9 in all\)"):
        loaded(llama)


def test_tensors_of_another_shape_are_named(llama: Path) -> None:
    change_tensors(llama, lambda tensors: tensors.update({"model.norm.weight": torch.ones(31)}))
    with pytest.raises(
        CheckpointError, match=r"shape: model\.norm\.weight \(\[31\] in the file, \[32\] by its config\)"
    ):
        loaded(llama)


def test_a_config_of_a_much_larger_model_is_refused_before_memory_is_allocated(llama: Path) -> None:
    write_config(llama, "LlamaForCausalLM", {"intermediate_size": 2**40})
    with pytest.raises(CheckpointError, match=r"has 2\d,\d{3} parameters; a .* with its config has 2\d\d,"):
        loaded(llama)


def test_a_model_whose_passes_fail_is_refused_when_it_is_loaded(llama: Path) -> None:
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    write_config(llama, "LlamaForCausalLM", {"rope_parameters": rope})
    with pytest.raises(CheckpointError, match=r"cannot compute a pass of this LlamaForCausalLM: The size of tensor a"):
        loaded(llama)


@pytest.mark.parametrize("multipliers", [{"logits_scaling": 0.0}, {"attention_multiplier": 1e39}])
def test_a_model_whose_logits_are_not_finite_is_refused(multipliers: dict[str, float], tmp_path: Path) -> None:
    config = transformers.GraniteConfig(**TINY, **multipliers)
    transformers.GraniteForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"logits that are not finite in float32\. Correct config\.json"):
        loaded(tmp_path, architecture="GraniteForCausalLM")


@pytest.mark.parametrize("settings", [{"max_new_tokens": -1}, {"pad_token_id": "a"}, {"watermarking_config": 3}])
def test_a_generation_config_that_transformers_refuses_is_named(settings: dict[str, Any], llama: Path) -> None:
    (llama / "generation_config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=r"generation_config\.json: transformers refuses it: "):
        loaded(llama)


@pytest.mark.parametrize(("key", "value"), [("head_dim", 16), ("head_dim", "x"), ("num_key_value_heads", 2)])
def test_heads_that_a_family_does_not_read_from_its_config_are_refused(key: str, value: object, tmp_path: Path) -> None:
    transformers.GPTJForCausalLM(transformers.GPTJConfig(**TINY, rotary_dim=4)).save_pretrained(tmp_path)
    write_config(tmp_path, "GPTJForCausalLM", {"rotary_dim": 4, key: value})
    with pytest.raises(CheckpointError, match=rf"found .*{value}.*; a GPTJForCausalLM computes 4 and 8\. Correct or"):
        loaded(tmp_path, architecture="GPTJForCausalLM")


@pytest.mark.parametrize("architecture", ["GPTJForCausalLM", "MistralForCausalLM"])
def test_settings_about_code_and_results_of_a_pass_are_ignored(architecture: str, tmp_path: Path) -> None:
    model_class = getattr(transformers, architecture)
    model_class(model_class.config_class(**TINY, rotary_dim=4, num_key_value_heads=4)).save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    settings |= {"return_dict": False, "output_hidden_states": True, "attn_implementation": "flash_attention_2"}
    (tmp_path / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    config = loaded(tmp_path, architecture=architecture).config
    assert (config.return_dict, config.output_hidden_states) == (True, False)
    assert config._attn_implementation in ("sdpa", "eager")


def test_a_config_that_ties_different_weights_is_corrected(llama: Path) -> None:
    """transformers does not tie them when it loads both, but the saved config would say so."""
    write_config(llama, "LlamaForCausalLM", {"tie_word_embeddings": True})
    model = loaded(llama)
    assert not model.config.tie_word_embeddings
    head = load_file(llama / "model.safetensors")["lm_head.weight"]
    assert torch.equal(model.lm_head.weight, head)
    change_tensors(llama, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"] + 0}))
    assert loaded(llama).config.tie_word_embeddings


def test_a_model_with_empty_tensors_is_refused(tmp_path: Path) -> None:
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**TINY, "intermediate_size": 0})).save_pretrained(
        tmp_path
    )
    with pytest.raises(CheckpointError, match=r"has tensors without entries: model\.layers\.0\.mlp.* \(6 in all\)"):
        loaded(tmp_path)


def test_what_older_releases_saved_beside_the_weights_is_not_missed(tmp_path: Path, llama: Path) -> None:
    gptj = tmp_path / "gptj"
    transformers.GPTJForCausalLM(transformers.GPTJConfig(**TINY, rotary_dim=4)).save_pretrained(gptj)
    masks = {"transformer.h.0.attn.bias": torch.ones(1, 1, 8, 8), "transformer.h.0.attn.masked_bias": torch.ones(1)}
    frequencies = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    for folder, architecture, beside in ((llama, "LlamaForCausalLM", frequencies), (gptj, "GPTJForCausalLM", masks)):
        weights = load_file(folder / "model.safetensors")
        change_tensors(folder, lambda tensors, beside=beside: tensors.update(beside))
        after = loaded(folder, architecture=architecture).state_dict()
        assert not beside.keys() & after.keys()
        assert weights.keys() <= after.keys()
        assert all(torch.equal(after[name], tensor) for name, tensor in weights.items())


@pytest.mark.parametrize("has_gpu", [False, True])
def test_fp8_weights_come_back_whole_also_beside_a_gpu(
    has_gpu: bool, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load_file(llama / "model.safetensors")

    def quantize(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if "proj" in name]:
            scale = tensors[name].abs().max() / 448
            tensors[name] = (tensors[name] / scale).to(torch.float8_e4m3fn)
            tensors[f"{name}_scale_inv"] = scale.reshape(1, 1)

    change_tensors(llama, quantize)
    settings = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    write_config(llama, "LlamaForCausalLM", {"quantization_config": settings})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *device: (9, 0))
    after = loaded(llama).state_dict()
    assert after.keys() == before.keys()
    for name, tensor in after.items():
        torch.testing.assert_close(tensor, before[name], rtol=0.07, atol=0.001)
