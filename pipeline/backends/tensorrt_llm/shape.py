"""Finds a model's sizes without a download: in its YAML, the arguments of random weights, or a checkpoint folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from pipeline.backends.tensorrt_llm import release_data
from pipeline.config.folders import expanded
from pipeline.config.schema import LocalCheckpoint, ModelConfig, ModelShape, RandomCheckpoint

# Keys of config.json for each size, the most common one first.
_NAMES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "intermediate_size": ("intermediate_size", "ffn_dim", "n_inner"),
    "num_layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_size": ("head_dim",),
    "vocab_size": ("vocab_size",),
}
_LEARNED = ("GPT2LMHeadModel", "GPTBigCodeForCausalLM", "OPTForCausalLM")


def shape_of(model: ModelConfig) -> ModelShape | None:
    """The model's sizes; None if they are unknown without a download."""
    if model.shape is not None:
        return model.shape
    match model.checkpoint:
        case RandomCheckpoint() as source:
            return shape_from_config(source.config, model.architecture)
        case LocalCheckpoint() as source:
            try:
                config = json.loads((expanded(source.path) / "config.json").read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError):
                config = None  # the fault is reported when the checkpoint is opened
            return shape_from_config(config, model.architecture) if isinstance(config, dict) else None
        case _:
            return None


def shape_from_config(config: Mapping[str, Any], architecture: str) -> ModelShape | None:
    """Sizes in a config.json; None if one is missing. position_embedding stays unset if neither the config nor the
    architecture determines it."""
    values: dict[str, Any] = {
        field: next((config[name] for name in names if config.get(name)), None) for field, names in _NAMES.items()
    }
    heads, hidden = values["num_attention_heads"], values["hidden_size"]
    if isinstance(heads, int) and isinstance(hidden, int):  # not 0, see above
        values["num_key_value_heads"] = values["num_key_value_heads"] or heads
        values["head_size"] = values["head_size"] or hidden // heads
        values["intermediate_size"] = values["intermediate_size"] or 4 * hidden
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        values["num_key_value_heads"] = 1  # Falcon and GPTBigCode ignore the key num_key_value_heads
    if position := _positions(config, architecture):
        values["position_embedding"] = position
    try:
        return ModelShape.model_validate({**values, "sliding_window": _sliding_window(config)})
    except ValidationError:
        return None


def _positions(config: Mapping[str, Any], architecture: str) -> str | None:
    if config.get("alibi"):
        return "alibi"
    if architecture in _LEARNED:
        return "learned_absolute"
    may_be_alibi = release_data.release().traits(architecture) & {"alibi", "maybe_alibi"}
    return None if may_be_alibi and "alibi" not in config else "rope"


def _sliding_window(config: Mapping[str, Any]) -> int | None:
    # Qwen2 has a key for the window and one that enables it.
    if config.get("use_sliding_window") is False:
        return None
    window: int | None = config.get("sliding_window")
    return window
