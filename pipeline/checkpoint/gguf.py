"""Opens a GGUF file as a checkpoint, and checks it. transformers dequantizes it at loading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.checkpoint.hashing import cached_sha256
from pipeline.config.bare_checkpoint import GGUF_ARCHITECTURES
from pipeline.config.gguf_file import GgufFile
from pipeline.errors import CheckpointError

# Without the first, transformers leaves the rows of queries and keys in the order of llama.cpp. For the second it has a
# default.
_REQUIRED = ("attention.head_count_kv", "attention.layer_norm_rms_epsilon")
# Divisors of the frequencies of rotary embeddings, which are not weights.
_ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def open_gguf(path: Path, architecture: str, cache_dir: Path) -> Checkpoint:
    """Check a file and return its description. Raises CheckpointError."""
    if not path.is_file():
        raise CheckpointError(f"There is no GGUF file {path}. Correct the path in the model config.")
    found = GgufFile(path, CheckpointError).architecture
    if architecture not in GGUF_ARCHITECTURES.get(found or "", ()):
        known = ", ".join(f"{word} ({' or '.join(classes)})" for word, classes in GGUF_ARCHITECTURES.items())
        raise CheckpointError(
            f"{path} has architecture {found!r}; the model config has {architecture!r}. Correct the "
            f"config. Supported in GGUF files: {known}."
        )
    return Checkpoint(path.parent, path.name, architecture, cached_sha256(path, cache_dir), (path,))


def missing_settings(path: Path, architecture: str) -> dict[str, Any]:
    """Return the values of the config that transformers does not read from GGUF files: the window of a Mistral, None
    for none, `head_dim` if the file has it, no padding token, and the end tokens. Reads the settings as llama.cpp does,
    without a check of their types. Raises CheckpointError for others that transformers ignores, and for missing ones,
    because it would compute another model."""

    def refusal(what: str) -> CheckpointError:
        return CheckpointError(
            f"{path} {what}, which transformers does not read from GGUF files. Use the checkpoint's safetensors "
            "instead (source: hub or local)."
        )

    file = GgufFile(path, CheckpointError)
    if lacking := [name for name in _REQUIRED if file.setting(name) is None]:
        raise CheckpointError(f"{path} has no {file.architecture}.{lacking[0]}. Use a file that has it.")
    kind = file.setting("rope.scaling.type") or "linear"
    factor = file.setting("rope.scaling.factor") or file.setting("rope.scale_linear") or 1.0
    if kind not in ("none", "linear") or (kind == "linear" and factor != 1.0):
        raise refusal(f"scales its rotary embeddings (rope.scaling.type '{kind}', factor {factor})")
    for tensor in file.tensors:
        if tensor.name in _ROPE_FACTORS and not bool((tensor.data == 1).all()):
            raise refusal(f"scales its rotary embeddings (tensor {tensor.name}, as Llama 3.1 has it)")
    missing: dict[str, Any] = {"pad_token_id": None}  # no pass needs it, and some files name one outside the vocabulary
    window = file.setting("attention.sliding_window") or None
    if architecture == "MistralForCausalLM":
        missing["sliding_window"] = window
    elif window is not None:
        raise refusal(f"has a sliding window of {window} tokens for a {architecture}")
    head_dim, rotated = file.setting("attention.key_length"), file.setting("rope.dimension_count")
    if head_dim and rotated and head_dim != rotated:
        raise refusal(f"has heads of {head_dim} dimensions, of which rotary embeddings rotate {rotated}")
    if head_dim:
        missing["head_dim"] = head_dim
    # Of the sequence, of a turn, of a message.
    ends = [file.value(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    if ends := [end for number, end in enumerate(ends) if end is not None and end not in ends[:number]]:
        missing["eos_token_id"] = ends
    return missing


def num_weights(path: Path) -> int:
    """Number of tensors that are parameters of the model."""
    return sum(tensor.name not in _ROPE_FACTORS for tensor in GgufFile(path, CheckpointError).tensors)


def num_weight_entries(path: Path) -> int:
    """Number of entries of all tensors."""
    return GgufFile(path, CheckpointError).num_entries
