"""Checkpoint -> the files that the torch engine loads: weights as safetensors in the resolved dtype, and the tokenizer."""

from __future__ import annotations

from pathlib import Path

from pipeline.checkpoint.convert import write_tokenizer, write_weights
from pipeline.checkpoint.disk import require_space
from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.config.schema import Dtype, ResolvedConfig
from pipeline.engine.artifact import ENGINE, TOKENIZER, Artifact, share_folder
from pipeline.errors import BuildError

_BYTES_PER_PARAMETER: dict[Dtype, int] = {"float32": 4, "float16": 2, "bfloat16": 2}
# The tokenizer and the small files.
_OTHER_BYTES = 32 << 20


def weight_bytes(resolved: ResolvedConfig) -> int:
    """Size of the weights in memory and on disk."""
    return resolved.model.num_parameters * _BYTES_PER_PARAMETER[resolved.dtype]


def require_resources(resolved: ResolvedConfig, folder: Path) -> None:
    """Raises BuildError if disk or memory will not do."""
    import psutil

    require_space(folder, weight_bytes(resolved) + _OTHER_BYTES, f"The engine of {resolved.model.name}", BuildError)
    needed, available = weight_bytes(resolved), psutil.virtual_memory().available
    if needed > available:
        raise BuildError(
            f"Building {resolved.model.name} in {resolved.dtype} needs {needed / 1e9:.1f} GB of memory; "
            f"{available / 1e9:.1f} GB are available. Use a smaller model, or --set model.dtype=bfloat16."
        )


def write_engine(resolved: ResolvedConfig, checkpoint: Checkpoint, folder: Path) -> None:
    """Write engine/ and tokenizer/ below folder. Raises CheckpointError if the checkpoint does not load."""
    write_tokenizer(checkpoint, folder / TOKENIZER)
    write_weights(checkpoint, resolved.dtype, folder / ENGINE)


def share_engine(other: Artifact, folder: Path) -> None:
    """The same files from another profile's artefact, without taking space again."""
    share_folder(other.engine_dir, folder / ENGINE)
    share_folder(other.tokenizer_dir, folder / TOKENIZER)
