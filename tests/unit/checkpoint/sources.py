"""Checkpoints of each source, for tests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from gguf import GGUFWriter

from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.checkpoint.convert import load_weights
from pipeline.checkpoint.fetch import fetch
from pipeline.checkpoint.model_config import read_config
from pipeline.config.schema import CheckpointSource, HubCheckpoint, ModelConfig, WheelCheckpoint
from pipeline.errors import CheckpointError

TINY: dict[str, int | float | str | bool | list[int]] = {
    "vocab_size": 300,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}


def model_of(source: CheckpointSource, architecture: str = "LlamaForCausalLM") -> ModelConfig:
    return ModelConfig(
        name="tiny", architecture=architecture, checkpoint=source, num_parameters=1000, max_position_embeddings=64
    )


def fault(source: CheckpointSource, cache_dir: Path, architecture: str = "LlamaForCausalLM") -> str:
    with pytest.raises(CheckpointError) as caught:
        fetch(model_of(source, architecture), cache_dir)
    return str(caught.value)


Spoil = Callable[[Path], object]


def text(name: str, content: str) -> Spoil:
    """Writes a file of a folder."""
    return lambda folder: (folder / name).write_text(content, encoding="utf-8")


def setting(name: str, **values: Any) -> Spoil:
    """Changes values of a JSON file of a folder."""
    return lambda folder: text(name, json.dumps({**json.loads((folder / name).read_bytes()), **values}))(folder)


def moved(name: str, target: str) -> Spoil:
    """Renames a file of a folder."""
    return lambda folder: (folder / name).rename(folder / target)


DYNAMIC_ROPE = setting("config.json", rope_parameters={"rope_type": "dynamic", "factor": 2.0})

WEIGHTS = b"GGUF" + bytes(1000)


def wheel_source(**changes: str) -> WheelCheckpoint:
    values = {
        "package": "carrier",
        "version": "1.0",
        "file": "carrier/model.gguf",
        "sha256": hashlib.sha256(WEIGHTS).hexdigest(),
    }
    return WheelCheckpoint(**{**values, **changes})


def hub_source() -> HubCheckpoint:
    return HubCheckpoint(repo_id="someone/something")


def loaded(folder: Path, gguf_file: str | None = None, architecture: str = "LlamaForCausalLM") -> Any:
    path = folder / (gguf_file or "model.safetensors")
    config = read_config(folder, architecture, gguf_file)
    return load_weights(Checkpoint(folder, gguf_file, architecture, "", (path,)), config, "float32")


def train_pieces(prefix: Path, texts: Sequence[str]) -> sentencepiece.SentencePieceProcessor:
    """A small SentencePiece model. Writes it to <prefix>.model."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*texts, "the quick brown fox jumps over the lazy dog"] * 4), hard_vocab_limit=False,
        model_prefix=str(prefix), model_type="bpe", vocab_size=340, byte_fallback=True,
        character_coverage=0.98, normalization_rule_name="identity", remove_extra_whitespaces=False,
        unk_id=0, bos_id=1, eos_id=2, minloglevel=2,
    )  # fmt: skip
    prefix.with_suffix(".vocab").unlink()
    return sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")


def write_tensors(writer: GGUFWriter) -> None:
    """Write the file of a writer that has its settings and tensors."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
