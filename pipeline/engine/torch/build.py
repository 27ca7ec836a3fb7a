"""Checkpoint -> the files that the torch engine loads: weights as safetensors in the resolved dtype, and the
tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.checkpoint.architectures import check_architecture
from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.checkpoint.convert import write_tokenizer, write_weights
from pipeline.checkpoint.disk import gigabytes, require_space
from pipeline.config.schema import Dtype, ResolvedConfig
from pipeline.engine.artifact import ENGINE, TOKENIZER
from pipeline.engine.fingerprint import Fingerprint, Flag, device_architecture, library_versions
from pipeline.errors import BuildError

_BYTES_PER_PARAMETER: dict[Dtype, int] = {"float32": 4, "float16": 2, "bfloat16": 2}
# The tokenizer and the small files.
_OTHER_BYTES = 32 << 20


def check(resolved: ResolvedConfig) -> None:
    """Raises CheckpointError for an architecture that the torch engine does not serve."""
    check_architecture(resolved.model.architecture, resolved.model.architecture, f"The model {resolved.model.name}")


def plan(resolved: ResolvedConfig) -> Mapping[str, Any]:
    """Size of the weights on disk and in memory."""
    return {"weights": f"{gigabytes(weight_bytes(resolved))} of {resolved.dtype} safetensors"}


def fingerprint(resolved: ResolvedConfig, checkpoint_hash: str) -> Fingerprint:
    """Of a torch engine built here and now. Raises BuildError if a library or the device is missing."""
    flags: dict[str, Flag] = {
        f"engine.{name}": value for name, value in resolved.profile.engine.model_dump(mode="json").items()
    }
    return Fingerprint(
        checkpoint=checkpoint_hash,
        architecture=resolved.model.architecture,
        backend="torch",
        libraries=library_versions("torch"),
        device=device_architecture(resolved.device),
        dtype=resolved.dtype,
        flags=flags,
        max_window_size=resolved.lookahead.max_window_size,
        max_ngram_size=resolved.lookahead.max_ngram_size,
        max_verification_set_size=resolved.lookahead.max_verification_set_size,
    )


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
            f"Building {resolved.model.name} in {resolved.dtype} needs {gigabytes(needed)} of memory; "
            f"{gigabytes(available)} are available. Use a smaller model, or --set model.dtype=bfloat16."
        )


def write_engine(resolved: ResolvedConfig, checkpoint: Checkpoint, folder: Path) -> None:
    """Write engine/ and tokenizer/ below folder. Raises CheckpointError if the checkpoint does not load."""
    write_tokenizer(checkpoint, folder / TOKENIZER)
    write_weights(checkpoint, resolved.dtype, folder / ENGINE)
