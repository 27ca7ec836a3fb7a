"""A checkpoint folder instead of a model config."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.config.resolution import resolve_config
from tests.unit.config.shipped import CPU, SHIPPED, faults_of, write


def test_a_checkpoint_folder_serves_as_model(tmp_path: Path) -> None:
    folder = tmp_path / "My Model"
    config = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096}
    write(folder / "config.json", json.dumps(config))
    header = json.dumps({"w": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(48))
    model = resolve_config(str(folder), "latency", where=SHIPPED, hardware=CPU).model
    assert (model.name, model.architecture, model.num_parameters) == ("my-model", "LlamaForCausalLM", 12)
    assert model.chat_template is False
    (folder / "config.json").unlink()
    assert "is not a checkpoint: it has no config.json" in faults_of(model=str(folder))
    (folder / "a.Q8.gguf").touch()
    assert "it has no config.json. Name its GGUF file instead: " in faults_of(model=str(folder))
