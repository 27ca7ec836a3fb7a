"""Opens a GGUF file as a checkpoint, and checks it. transformers dequantizes it at loading."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.checkpoint.hashing import cached_sha256
from pipeline.config.bare_checkpoint import GGUF_ARCHITECTURES
from pipeline.errors import CheckpointError

if TYPE_CHECKING:
    from gguf import GGUFReader

# Divisors of the frequencies of rotary embeddings, which are not weights.
_ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def open_gguf(path: Path, architecture: str, cache_dir: Path) -> Checkpoint:
    """Check a file and return its description. Raises CheckpointError."""
    if not path.is_file():
        raise CheckpointError(f"There is no GGUF file {path}. Correct the path in the model config.")
    found = _architecture(path)
    if architecture not in GGUF_ARCHITECTURES.get(found, ()):
        known = ", ".join(f"{word} ({' or '.join(classes)})" for word, classes in GGUF_ARCHITECTURES.items())
        raise CheckpointError(
            f"{path} has architecture {found!r}; the model config has {architecture!r}. Correct the "
            f"config. Supported in GGUF files: {known}."
        )
    return Checkpoint(path.parent, path.name, architecture, cached_sha256(path, cache_dir), (path,))


def missing_settings(path: Path, architecture: str) -> dict[str, int | None]:
    """Return the values of the config that transformers does not read from GGUF files: the window of a Mistral, None
    for none, and `head_dim` if the file has it. Reads the settings as llama.cpp does. Raises CheckpointError for others
    that transformers ignores, because it would compute another model."""
    from gguf import GGUFReader

    reader = GGUFReader(path)
    kind = _setting(reader, "rope.scaling.type") or "linear"
    factor = _setting(reader, "rope.scaling.factor") or _setting(reader, "rope.scale_linear") or 1.0
    if kind not in ("none", "linear") or (kind == "linear" and factor != 1.0):
        raise CheckpointError(
            f"{path} scales its rotary embeddings (rope.scaling.type '{kind}', factor {factor:g}), which transformers "
            "does not read from GGUF files. Use the checkpoint's safetensors instead (source: hub or local)."
        )
    for tensor in reader.tensors:
        if tensor.name in _ROPE_FACTORS and not bool((tensor.data == 1).all()):
            raise CheckpointError(
                f"{path} scales its rotary embeddings (tensor {tensor.name}, as Llama 3.1 has it), which transformers "
                "does not read from GGUF files. Use the checkpoint's safetensors instead (source: hub or local)."
            )
    missing: dict[str, int | None] = {}
    window = _setting(reader, "attention.sliding_window") or None
    if architecture == "MistralForCausalLM":
        missing["sliding_window"] = window
    elif window is not None:
        raise CheckpointError(
            f"{path} has a sliding window of {window} tokens, which transformers does not read from GGUF files for a "
            f"{architecture}. Use the checkpoint's safetensors instead (source: hub or local)."
        )
    head_dim, rotated = _setting(reader, "attention.key_length"), _setting(reader, "rope.dimension_count")
    if head_dim and rotated and head_dim != rotated:
        raise CheckpointError(
            f"{path} has heads of {head_dim} dimensions, of which rotary embeddings rotate {rotated}; transformers "
            f"rotates all of a {architecture}. Use the checkpoint's safetensors instead (source: hub or local)."
        )
    if head_dim:
        missing["head_dim"] = head_dim
    return missing


def num_weights(path: Path) -> int:
    """Number of tensors that are parameters of the model."""
    from gguf import GGUFReader

    return sum(tensor.name not in _ROPE_FACTORS for tensor in GGUFReader(path).tensors)


def _setting(reader: GGUFReader, name: str) -> Any:
    """A setting of the file's architecture; None if it is missing."""
    architecture = reader.get_field("general.architecture")
    field = reader.get_field(f"{architecture.contents()}.{name}") if architecture is not None else None
    return field.contents() if field is not None else None


def _architecture(path: Path) -> str:
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise CheckpointError(f"{path} is not a GGUF file. Fetch it again.")
    from gguf import GGUFReader

    size = path.stat().st_size
    try:
        reader = GGUFReader(path)
        end = max((int(tensor.data_offset) + int(tensor.n_bytes) for tensor in reader.tensors), default=0)
        field = reader.get_field("general.architecture")
    except (ValueError, IndexError, KeyError) as error:  # errors of GGUFReader for a truncated file
        raise CheckpointError(f"{path} is incomplete or damaged ({size} bytes). Fetch it again.") from error
    if end > size:
        raise CheckpointError(f"{path} is incomplete: it has {size} of {end} bytes. Fetch it again.")
    return str(field.contents()) if field is not None else "(none named)"
