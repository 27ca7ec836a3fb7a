"""Reads a checkpoint's config through transformers, and checks that the torch engine can compute the model.

transformers renames, merges and completes settings (a Phi-3 'yarn' becomes a 'longrope'), so the checks need its result
and not the file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.checkpoint.architectures import check_rope, refuse_length_dependent_rope
from pipeline.checkpoint.gguf import missing_settings
from pipeline.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

# Quantized weights that transformers can dequantize without further packages.
_DEQUANTIZED = ("fp8",)
_MOST_LAYERS = 1024
# A model ignores these settings if its config class does not declare them. The KV cache of transformers applies windows
# all the same, and `get_text_config` returns those in the second line in place of the config. The last is BLOOM's.
_UNDECLARED = (
    *("sliding_window", "use_sliding_window", "layer_types"),
    *("text_config", "decoder", "generator", "text_encoder"),
    "slow_but_exact",
)
_LARGEST_WINDOW = 2**31 - 1


def read_config(folder: Path, architecture: str, gguf_file: str | None = None) -> PretrainedConfig:
    """Return the transformers config of a folder. Raises CheckpointError if transformers cannot read it, or would
    compute another model than the file describes."""
    import transformers

    config_class = getattr(transformers, architecture).config_class
    missing = {} if gguf_file is None else missing_settings(folder / gguf_file, architecture)
    try:
        config: PretrainedConfig = config_class.from_pretrained(folder, local_files_only=True, gguf_file=gguf_file)
        for key, value in missing.items():
            setattr(config, key, value)  # replaces defaults of transformers: Mistral has a window, Qwen3 128 dimensions
    except Exception as error:  # values of a wrong type may raise anything
        raise CheckpointError(
            f"{folder / (gguf_file or 'config.json')} is not a config of a {architecture}: {reason(error)}."
        ) from error
    declared = {field.name for field in dataclasses.fields(config)}
    for key in _UNDECLARED:
        if key not in declared and key in vars(config):
            delattr(config, key)
    # Settings about results and code of a pass, not about the model. transformers does not save a config that requests
    # attentions from fast attention, nor load one that names a package that is not installed.
    config.output_attentions = config.output_hidden_states = False
    config.return_dict = True
    config._attn_implementation = None
    return config


def check_layers(config: PretrainedConfig, where: str) -> None:
    """Raise CheckpointError for a model without layers, or if creating them would exhaust the memory."""
    layers = config.get_text_config().num_hidden_layers
    if not 1 <= layers <= _MOST_LAYERS:
        raise CheckpointError(f"{where}: num_hidden_layers: found {layers}; should be 1 to {_MOST_LAYERS}.")


def check_config(config: PretrainedConfig, where: str) -> None:
    """Raise CheckpointError for a model that the torch engine would compute wrongly or not at all."""
    check_layers(config, where)
    for key, value in config.to_dict().items():
        if value != value:  # NaN, which Python's JSON reads
            raise CheckpointError(f"{where}: {key} in config.json: found NaN; should be a number.")
        is_number = isinstance(value, int | float) and value >= 0
        if key.endswith(("_eps", "_epsilon")) and value is not None and not is_number:
            raise CheckpointError(f"{where}: {key} in config.json: found {value!r}; should be a number from 0 on.")
    check_rope(config.to_dict(), where)
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    if window is not None and not 1 <= window <= _LARGEST_WINDOW:
        raise CheckpointError(
            f"{where}: sliding_window in config.json: found {window}; should be null, or a whole number from 1 to "
            f"{_LARGEST_WINDOW}."
        )
    if window is None and "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        raise CheckpointError(
            f"{where}: layer_types in config.json has 'sliding_attention', and there is no window: set sliding_window "
            "(and use_sliding_window: true, if the config has it), or make them 'full_attention'."
        )
    for key, causal in (("use_bidirectional_attention", False), ("is_causal", True)):
        if bool(getattr(config, key, causal)) is not causal:
            raise CheckpointError(
                f"{where} has {key}: {'false' if causal else 'true'} in config.json, so it cannot generate text. Use a "
                "causal variant of the model."
            )
    if getattr(config, "slow_but_exact", False) and config.pretraining_tp > 1:
        raise CheckpointError(
            f"{where} has slow_but_exact with pretraining_tp {config.pretraining_tp} in config.json, which is not "
            "supported. Set slow_but_exact: false there; the sums are the same up to rounding."
        )
    for key in ("quantization_config", "compression_config"):
        quantization = getattr(config, key, None)
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
        if quantization is not None and method not in _DEQUANTIZED:
            raise CheckpointError(
                f"{where} has quantized weights ({key} in config.json, quant_method {method!r}), which the torch "
                "engine does not support. Use the original checkpoint (with engine.quantization: int8, if "
                "wanted), or a GGUF file."
            )


def check_positions(config: PretrainedConfig, max_position_embeddings: int, where: str) -> None:
    """Raise CheckpointError if max_position_embeddings exceeds the checkpoint's context. Learned positions end there,
    and rotary positions beyond it are untrained. config: passed `check_config`."""
    limit = _longest_context(config)
    if limit is not None and max_position_embeddings > limit:
        raise CheckpointError(
            f"model.max_position_embeddings: found {max_position_embeddings}; should be at most {limit}, the context "
            f"length of {where}."
        )


def check_model(model: PreTrainedModel, where: str) -> None:
    """Raise CheckpointError as `check_config` does, for the layers that transformers created from a config."""
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        refuse_length_dependent_rope(kinds.values() if isinstance(kinds, Mapping) else [kinds], where)
        if getattr(module, "is_causal", True) is False:
            raise CheckpointError(
                f"{where} has attention that is not causal, so it cannot generate text. Use a causal variant of the "
                "model."
            )


def kv_heads(config: PretrainedConfig) -> tuple[int, int]:
    """Number and width of the key/value heads by a config."""
    heads = config.num_attention_heads
    return (
        getattr(config, "num_key_value_heads", None) or heads,
        getattr(config, "head_dim", None) or config.hidden_size // heads,
    )


def reason(error: Exception) -> str:
    """The message of an error as one line without a full stop."""
    from huggingface_hub.errors import StrictDataclassError

    lines = [line.strip() for line in str(error).strip().splitlines()]
    if isinstance(error, StrictDataclassError) or (lines and lines[0].endswith(":")):
        lines = [" ".join(lines)]  # the setting is in the first line, its fault in the last
    if isinstance(error, KeyError):
        return f"transformers does not find {' '.join(lines)}"  # a KeyError contains only the key
    if not lines or isinstance(error, LookupError):
        return " ".join([type(error).__name__, *lines])
    return lines[0].rstrip(".")


def _longest_context(config: PretrainedConfig) -> int | None:
    """Number of positions, None without a limit (ALiBi)."""
    stated: int | None = getattr(config, "max_position_embeddings", None)
    if stated is None:
        return None
    rope = getattr(config, "rope_parameters", None) or {}
    limits = [stated]
    for settings in (rope, *(inner for inner in rope.values() if isinstance(inner, Mapping))):
        # Publishers state the length before scaling (Qwen 2.5, Vicuna) or after it (Llama 3.1).
        original = settings.get("original_max_position_embeddings") or stated
        factor = settings.get("factor") or 1
        limits.append(int(original * factor))
    return max(limits)
