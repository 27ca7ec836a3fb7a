"""Tiny random models for the lean pass, written and loaded as an engine's folder."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from pipeline.engine.contract import EngineLimits
from pipeline.engine.torch.lean.engine import LeanEngine
from pipeline.engine.torch.lean.layout import save_lean
from pipeline.engine.torch.lean.plan import WEIGHTS, Kind, read_plan
from pipeline.engine.torch.lean.weights import map_weights

VOCAB_SIZE = 90
LIMITS = EngineLimits(
    max_batch_size=6, max_seq_len=192, max_num_tokens=512, max_draft_tokens=128, vocab_size=VOCAB_SIZE
)
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 40,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.4,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
# Settings that differ between families and checkpoints.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    # Matrices of all layers have multiples of 64 inputs, as AMX needs them.
    "wide": ("LlamaForCausalLM", {"hidden_size": 64, "intermediate_size": 128}),
    "tied": ("LlamaForCausalLM", {"tie_word_embeddings": True}),
    "all heads": ("LlamaForCausalLM", {"num_key_value_heads": 4, "head_dim": 16}),
    "one key head": ("LlamaForCausalLM", {"num_key_value_heads": 1}),
    "biases": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "llama3 rope": (
        "LlamaForCausalLM",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "linear rope": (
        "LlamaForCausalLM",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "yarn rope": (
        "LlamaForCausalLM",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "mistral": ("MistralForCausalLM", {"sliding_window": 7}),
    "mistral without window": ("MistralForCausalLM", {"sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 21, "max_window_layers": 2}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 16, "tie_word_embeddings": True}),
}


def tiny_model(variant: str, **changes: Any) -> PreTrainedModel:
    """A random float32 model; biases and norms are random as well."""
    # A copy takes half as long as a new one.
    return _new_model(variant, **changes) if changes else copy.deepcopy(_model_of(variant))


@cache
def _model_of(variant: str) -> PreTrainedModel:
    return _new_model(variant)


def _new_model(variant: str, **changes: Any) -> PreTrainedModel:
    architecture, own = VARIANTS[variant]
    torch.manual_seed(5)
    model_class = getattr(transformers, architecture)
    model: PreTrainedModel = model_class(model_class.config_class(**{**COMMON, **own, **changes})).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".bias"):
                parameter.normal_(0, 0.3)
            elif "norm" in name:
                parameter.uniform_(0.5, 1.5)
    return model


def lean_engine(
    model: PreTrainedModel, kind: Kind, folder: Path, num_threads: int = 2, limits: EngineLimits = LIMITS
) -> LeanEngine:
    """An engine over the model's weights."""
    assert save_lean(model, kind, folder)
    plan = read_plan(folder)
    assert plan is not None
    return LeanEngine(plan, map_weights(folder / WEIGHTS), limits, num_threads)
