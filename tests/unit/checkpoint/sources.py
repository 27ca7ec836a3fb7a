"""Checkpoints of each source, for tests."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

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


def spoil_rope(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["rope_parameters"] = {"rope_type": "dynamic", "factor": 2.0}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


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
