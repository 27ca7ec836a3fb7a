"""Checkpoint -> a folder that `from_pretrained` reads: safetensors in one dtype, config, generation config,
tokenizer."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.checkpoint.disk import is_full
from pipeline.checkpoint.gguf import num_weight_entries, num_weights
from pipeline.checkpoint.gguf_tokenizer import read_tokenizer
from pipeline.checkpoint.local import tokenizer_files
from pipeline.checkpoint.model_config import check_model, kv_heads, reason
from pipeline.checkpoint.tokenizer_files import VOCABULARY, copy_tokenizer, save_tokenizer
from pipeline.config.bare_checkpoint import num_entries
from pipeline.config.schema import Dtype
from pipeline.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

# Causal masks that older releases of transformers saved as tensors (GPT-2, GPT-J, GPT-NeoX); transformers ignores most.
_SAVED_MASKS = re.compile(r"\.(attn|attention)\.(masked_)?bias$")

# Largest size of a model as a multiple of its files at which missing tensors are listed by name.
_MOST_ABSENT = 4


def load_weights(checkpoint: Checkpoint, config: PretrainedConfig, dtype: Dtype) -> PreTrainedModel:
    """Load the checkpoint as a transformers model that can be saved. config: from `read_config`. Raises CheckpointError
    as `check_model` does, for tensors that are missing, unknown, of a wrong shape, or not finite in that dtype, and if
    transformers cannot compute a pass."""
    import torch
    import transformers

    where = str(checkpoint.folder / (checkpoint.gguf_file or ""))
    # Suppress its table of missing tensors, because the errors below report them. A level of that logger makes it list
    # layers without tensor parallelism, too.
    for name in ("modeling_utils", "distributed.tensor_parallel"):
        logging.getLogger(f"transformers.{name}").setLevel(logging.ERROR)
    if quantization := getattr(config, "quantization_config", None):
        quantization["dequantize"] = True  # otherwise transformers keeps the layers quantized on a machine with a GPU
    model_class = getattr(transformers, checkpoint.architecture)
    _check_generation_config(checkpoint.folder)
    _check_size(checkpoint, config, model_class, where)
    try:
        model, report = model_class.from_pretrained(
            checkpoint.folder,
            config=config,
            dtype=getattr(torch, dtype),
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # the report names them, the error does not
            local_files_only=True,
            gguf_file=checkpoint.gguf_file,
        )
    except Exception as error:  # damaged files may raise anything
        raise CheckpointError(f"{where} cannot be loaded as {checkpoint.architecture}: {reason(error)}.") from error
    other_shapes = [
        f"{name} ({list(found)} in the file, {list(wanted)} by its config)"
        for name, found, wanted in sorted(report["mismatched_keys"])
    ]
    if wrong := sorted(report["missing_keys"]) or other_shapes:
        raise CheckpointError(
            f"{where} lacks tensors of {checkpoint.architecture}, or has them in another shape: {_some(wrong)}. "
            "Fetch the checkpoint again, or correct its config."
        )
    if unknown := sorted(key for key in report["unexpected_keys"] if not _SAVED_MASKS.search(key)):
        raise CheckpointError(
            f"{where} holds tensors that are not part of a {checkpoint.architecture} with its config: "
            f"{_some(unknown)}. Fetch the checkpoint again, or correct its config."
        )
    if checkpoint.gguf_file is not None:
        _check_gguf_weights(checkpoint, model)
    if model.get_output_embeddings().weight is not model.get_input_embeddings().weight:
        # A config may tie weights that differ; transformers then ignores it.
        model.config.tie_word_embeddings = False
    check_model(model, where)
    _check_finite(model, dtype, where)
    _check_pass(model, dtype, where)
    # Weights from GGUF are dequantized, but transformers refuses to save a model with a quantizer attached.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return cast("PreTrainedModel", model)


def write_tokenizer(checkpoint: Checkpoint, folder: Path) -> None:
    """Write the tokenizer with its chat template: the checkpoint's own files if it has a tokenizer.json, else generated
    files. Raises CheckpointError if transformers cannot read it."""
    from transformers import AutoTokenizer

    source = checkpoint.folder
    where = str(source / (checkpoint.gguf_file or ""))
    folder.mkdir(parents=True, exist_ok=True)
    has_own = not checkpoint.gguf_file and (source / VOCABULARY).is_file()
    try:
        if has_own:
            copy_tokenizer(tokenizer_files(source), source / "config.json", folder)
        if checkpoint.gguf_file:
            tokenizer = read_tokenizer(source / checkpoint.gguf_file)
        else:
            # trust_remote_code: without it transformers asks at a terminal whether to run the checkpoint's code.
            tokenizer = AutoTokenizer.from_pretrained(
                folder if has_own else source, local_files_only=True, trust_remote_code=False
            )
        tokenizer.encode("a")  # some settings are read only here
    except Exception as error:  # the tokenizers library raises no other class
        if isinstance(error, CheckpointError) or is_full(error):
            raise
        raise CheckpointError(
            f"The tokenizer of {where} cannot be read: {reason(error)}. Fetch its files again."
        ) from error
    _check_chat_template(tokenizer, where)
    if not has_own:
        save_tokenizer(tokenizer, folder)


def _check_chat_template(tokenizer: Any, where: str) -> None:
    """Raise CheckpointError if the template cannot render a single user message."""
    if not tokenizer.chat_template:
        return
    try:
        tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template may raise anything
        raise CheckpointError(
            f"The chat template of {where} fails: {reason(error)}. Correct it, or remove it to serve the model "
            "without one."
        ) from error


def _check_finite(model: PreTrainedModel, dtype: Dtype, where: str) -> None:
    """Raise CheckpointError for weights that are empty, not finite, or not within the dtype's range."""
    import torch

    if empty := [name for name, weight in model.named_parameters() if not weight.numel()]:
        raise CheckpointError(f"{where} has tensors without entries: {_some(empty)}. Correct the sizes in its config.")
    broken = [
        name
        for name, weight in model.named_parameters()
        if not all(bound.isfinite() for bound in torch.aminmax(weight.detach()))
    ]
    if broken:
        raise CheckpointError(
            f"{where} holds weights that are not finite in {dtype}: {_some(broken)}. Use a dtype with a wider "
            "range (--set model.dtype=float32 or bfloat16); if that does not help, fetch the checkpoint again."
        )


def _check_generation_config(folder: Path) -> None:
    """Raise CheckpointError if transformers refuses the file. Its errors while it loads a model do not name it."""
    from transformers import GenerationConfig

    if (path := folder / "generation_config.json").is_file():
        try:
            GenerationConfig.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # values of a wrong type may raise anything
            raise CheckpointError(f"{path}: transformers refuses it: {reason(error)}. Correct or remove it.") from error


def _check_size(checkpoint: Checkpoint, config: PretrainedConfig, model_class: Any, where: str) -> None:
    """Raise CheckpointError for a config of a model that is much larger than the files. transformers would allocate and
    initialize what they lack before it reports it."""
    import torch

    try:
        with torch.device("meta"):
            wanted = model_class(config).num_parameters()
    except Exception as error:  # values of a wrong type may raise anything
        raise CheckpointError(f"{where} cannot be loaded as {checkpoint.architecture}: {reason(error)}.") from error
    count = num_entries if checkpoint.gguf_file is None else num_weight_entries
    found = sum(count(path) for path in checkpoint.weight_files)
    if wanted > _MOST_ABSENT * found:
        raise CheckpointError(
            f"{where} has {found:,} parameters; a {checkpoint.architecture} with its config has {wanted:,}. Correct "
            "the sizes in the config, such as vocab_size and intermediate_size, or fetch the checkpoint again."
        )


def _check_pass(model: PreTrainedModel, dtype: Dtype, where: str) -> None:
    """Raise CheckpointError if a pass of two tokens fails, has logits that are not finite, or has key/value heads of
    another number or width than the config. Some faults of a config show only there."""
    import torch

    ids = torch.tensor([[0, len(model.get_input_embeddings().weight) - 1]])
    try:
        with torch.inference_mode():
            output = model(ids, use_cache=True)
    except Exception as error:  # inconsistent settings may raise anything
        raise CheckpointError(
            f"{where}: transformers cannot compute a pass of this {type(model).__name__}: {reason(error)}. Correct "
            "config.json, for example rope_parameters or layer_types."
        ) from error
    if not output.logits.isfinite().all():
        raise CheckpointError(
            f"{where}: a pass has logits that are not finite in {dtype}. Correct config.json, for example "
            "multipliers and epsilons, or use a dtype with a wider range (--set model.dtype=float32)."
        )
    cache = output.cache if "cache" in output else output.past_key_values  # the older name warns from 5.24 on
    stated, (_, heads, _, width) = kv_heads(model.config.get_text_config()), cache.layers[0].keys.shape
    if stated != (heads, width):
        raise CheckpointError(
            f"{where}: num_key_value_heads and head_dim in config.json: found {stated[0]!r} and {stated[1]!r}; a "
            f"{type(model).__name__} computes {heads} and {width}. Correct or remove them."
        )


def _check_gguf_weights(checkpoint: Checkpoint, model: PreTrainedModel) -> None:
    """Raise CheckpointError unless transformers has read all tensors of a GGUF file, because it ignores unexpected
    ones, such as biases."""
    (path,) = checkpoint.weight_files
    found, taken = num_weights(path), sum(1 for _ in model.parameters())
    if found != taken:
        raise CheckpointError(
            f"{path} holds {found} tensors; the {checkpoint.architecture} that transformers reads from it has {taken}. "
            "Use the checkpoint's safetensors instead (source: hub or local)."
        )


def _some(names: list[str]) -> str:
    return f"{', '.join(names[:3])}{' ...' if len(names) > 3 else ''} ({len(names)} in all)"
