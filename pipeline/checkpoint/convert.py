"""Checkpoint -> a plain folder that `from_pretrained` reads: safetensors in one dtype, config, generation config,
tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.config.schema import Dtype
from pipeline.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def write_weights(checkpoint: Checkpoint, dtype: Dtype, folder: Path) -> None:
    """Load through transformers and save as safetensors. Raises CheckpointError as `load_weights` does."""
    load_weights(checkpoint, dtype).save_pretrained(folder)


def load_weights(checkpoint: Checkpoint, dtype: Dtype) -> PreTrainedModel:
    """The checkpoint as transformers' model, ready to be saved. Raises CheckpointError if tensors are missing or do
    not fit."""
    import torch
    import transformers
    from huggingface_hub.errors import StrictDataclassError

    model_class = getattr(transformers, checkpoint.architecture)
    arguments: dict[str, Any] = {"gguf_file": checkpoint.gguf_file} if checkpoint.gguf_file else {}
    try:
        model, report = model_class.from_pretrained(
            checkpoint.folder, dtype=getattr(torch, dtype), output_loading_info=True, local_files_only=True, **arguments
        )
    except (OSError, ValueError, RuntimeError, KeyError, StrictDataclassError) as error:
        raise CheckpointError(
            f"{checkpoint.folder} cannot be loaded as {checkpoint.architecture}: {_reason(error)}."
        ) from error
    missing = sorted(report["missing_keys"])
    if missing or report["mismatched_keys"]:
        wrong = missing or sorted(str(key) for key in report["mismatched_keys"])
        raise CheckpointError(
            f"{checkpoint.folder} lacks tensors of {checkpoint.architecture}, or has them in another shape: "
            f"{', '.join(wrong[:3])}{' ...' if len(wrong) > 3 else ''} ({len(wrong)} in all)."
        )
    # Weights from GGUF are dequantised, but transformers keeps the quantiser attached and then refuses to save.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return cast("PreTrainedModel", model)


def write_tokenizer(checkpoint: Checkpoint, folder: Path) -> None:
    """The tokenizer with its chat template. Raises CheckpointError if transformers cannot read it."""
    from transformers import AutoTokenizer

    arguments: dict[str, Any] = {"gguf_file": checkpoint.gguf_file} if checkpoint.gguf_file else {}
    try:
        # Else transformers would ask at a terminal whether to run code of the checkpoint in this process.
        tokenizer = AutoTokenizer.from_pretrained(
            checkpoint.folder, local_files_only=True, trust_remote_code=False, **arguments
        )
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"The tokenizer of {checkpoint.folder} cannot be read: {_reason(error)}.") from error
    tokenizer.save_pretrained(folder)


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
