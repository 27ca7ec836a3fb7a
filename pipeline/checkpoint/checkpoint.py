"""The description of a checkpoint on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The files of a checkpoint. folder: argument of `from_pretrained`. gguf_file: name inside the folder, or None for
    safetensors. architecture: class name as in config.json. content_hash: of weights, config and tokenizer.
    weight_files: absolute paths. code_files: the checkpoint's Python code with its data, for converters that run it;
    None if running it is not allowed."""

    folder: Path
    gguf_file: str | None
    architecture: str
    content_hash: str
    weight_files: tuple[Path, ...]
    code_files: tuple[Path, ...] | None = None

    @property
    def num_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.weight_files)
