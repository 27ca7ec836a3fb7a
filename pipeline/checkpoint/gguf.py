"""A GGUF file as checkpoint: checked for completeness and architecture; `transformers` dequantises it when it is
loaded."""

from __future__ import annotations

from pathlib import Path

from pipeline.checkpoint.architectures import GGUF_ARCHITECTURES
from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.checkpoint.hashing import remembered_sha256
from pipeline.errors import CheckpointError


def open_gguf(path: Path, architecture: str, cache_dir: Path) -> Checkpoint:
    """Check a file and describe it. Raises CheckpointError."""
    if not path.is_file():
        raise CheckpointError(f"There is no GGUF file {path}. Correct the path in the model config.")
    found = _architecture(path)
    if architecture not in GGUF_ARCHITECTURES.get(found, ()):
        known = ", ".join(f"{word} ({' or '.join(classes)})" for word, classes in GGUF_ARCHITECTURES.items())
        raise CheckpointError(
            f"{path} holds architecture '{found}'; the model config says {architecture}. "
            f"Supported in GGUF files: {known}."
        )
    return Checkpoint(path.parent, path.name, architecture, remembered_sha256(path, cache_dir), (path,), ())


def _architecture(path: Path) -> str:
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise CheckpointError(f"{path} is no GGUF file: it does not begin with the letters GGUF.")
    from gguf import GGUFReader

    size = path.stat().st_size
    try:
        reader = GGUFReader(path)
        end = max((int(tensor.data_offset) + int(tensor.n_bytes) for tensor in reader.tensors), default=0)
        field = reader.get_field("general.architecture")
    except (ValueError, IndexError, KeyError) as error:  # how the reader meets the end of the file too early
        raise CheckpointError(f"{path} is cut short or damaged ({size} bytes). Fetch it again.") from error
    if end > size:
        raise CheckpointError(f"{path} should have at least {end} bytes; it has {size}. Fetch it again.")
    return str(field.contents()) if field is not None else "(none named)"
