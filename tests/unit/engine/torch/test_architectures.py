"""Every supported architecture as a tiny random model: tree passes equal transformers' own, path by path."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from transformers import PretrainedConfig, PreTrainedModel

from pipeline.checkpoint.architectures import ARCHITECTURES, SUPPORTED_ARCHITECTURES
from pipeline.engine.contract import EngineLimits
from pipeline.engine.torch.engine import TorchEngine
from tests.unit.engine.torch.devices import DEVICE
from tests.unit.engine.torch.plain_passes import worst_difference

VOCAB_SIZE = 40
LIMITS = EngineLimits(max_batch_size=2, max_seq_len=96, max_num_tokens=96, max_draft_tokens=16, vocab_size=VOCAB_SIZE)

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.4,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED: dict[str, Any] = {"num_key_value_heads": 2}

# Features of a single family, switched on for the test. Windows are shorter than the test's sequences.
OWN: dict[str, dict[str, Any]] = {
    "MistralForCausalLM": {"sliding_window": 7},
    "MixtralForCausalLM": {"num_local_experts": 4, "sliding_window": 7},
    "Phi3ForCausalLM": {"sliding_window": 7},
    "Starcoder2ForCausalLM": {"sliding_window": 7},
    "SmolLM3ForCausalLM": {"use_sliding_window": True, "sliding_window": 7, "no_rope_layers": [1, 1, 1, 0]},
    "Qwen2ForCausalLM": {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2},
    "Qwen3ForCausalLM": {"head_dim": 16, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2},
    "Gemma2ForCausalLM": {"head_dim": 16, "sliding_window": 7, "query_pre_attn_scalar": 16},
    "Gemma3ForCausalLM": {"head_dim": 16, "sliding_window": 7, "query_pre_attn_scalar": 16},
    "Olmo3ForCausalLM": {"sliding_window": 7},
    "Cohere2ForCausalLM": {"sliding_window": 7},
    "Qwen2MoeForCausalLM": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "use_sliding_window": True,
        "sliding_window": 7,
        "max_window_layers": 2,
    },
    "Qwen3MoeForCausalLM": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "head_dim": 8,
        "use_sliding_window": True,
        "sliding_window": 7,
    },
    "GPTJForCausalLM": {"rotary_dim": 4},
    "OPTForCausalLM": {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.4},
}
ALL_HEADS = ("GPTNeoXForCausalLM", "GPT2LMHeadModel", "GPTJForCausalLM", "OPTForCausalLM", "BloomForCausalLM")


def config_of(architecture: str) -> PretrainedConfig:
    grouped = {} if architecture in ALL_HEADS else GROUPED
    config: PretrainedConfig = getattr(transformers, architecture).config_class(
        **{**COMMON, **grouped, **OWN.get(architecture, {})}
    )
    return config


def tiny_model(architecture: str) -> PreTrainedModel:
    return copy.deepcopy(shared_model(architecture))


@cache
def shared_model(architecture: str) -> PreTrainedModel:
    """`tiny_model` for tests that do not change it. A copy takes half as long as a new one."""
    torch.manual_seed(3)
    model: PreTrainedModel = getattr(transformers, architecture)(config_of(architecture))
    model.set_attn_implementation("eager")  # the default of some releases leaves out what it cannot do (soft caps)
    # Experts have no float64 kernel.
    has_experts = {"num_local_experts", "num_experts"} & model.config.to_dict().keys()
    return model.to(torch.float32 if has_experts else torch.float64).eval()


@pytest.mark.parametrize("architecture", SUPPORTED_ARCHITECTURES)
def test_chunks_trees_and_commits_equal_plain_passes(architecture: str) -> None:
    engine = TorchEngine(tiny_model(architecture).to(DEVICE), LIMITS)
    assert worst_difference(engine, shared_model(architecture)) <= 1e-4


@pytest.mark.parametrize("architecture", [known.name for known in ARCHITECTURES if "sliding" in known.attention])
def test_windows_are_shorter_than_the_sequences_of_these_tests(architecture: str) -> None:
    windowed, tokens = shared_model(architecture), torch.arange(1, 21)[None]
    plain = tiny_model(architecture)
    assert windowed.config.sliding_window == 7
    for module in plain.modules():
        if getattr(module, "sliding_window", None) is not None:
            module.sliding_window = 64
    plain.config.sliding_window = 64
    with torch.inference_mode():
        assert not torch.allclose(windowed(tokens).logits[0, -1], plain(tokens).logits[0, -1])


def test_what_is_called_full_has_no_window() -> None:
    for known in ARCHITECTURES:
        if "sliding" not in known.attention:
            assert getattr(config_of(known.name), "sliding_window", None) is None, known.name
