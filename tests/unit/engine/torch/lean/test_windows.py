"""The lean pass has the sliding windows that transformers' models have, for any settings of windows in config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.checkpoint.convert import load_weights
from pipeline.checkpoint.model_config import check_config, read_config
from tests.unit.engine.torch.lean.models import lean_engine, tiny_model
from tests.unit.engine.torch.plain_passes import worst_difference

ALTERNATE = ["sliding_attention", "full_attention", "sliding_attention"]
SETTINGS: tuple[dict[str, Any], ...] = (
    {"sliding_window": None},
    {"sliding_window": 7},
    {"sliding_window": 7, "use_sliding_window": True},
    {"sliding_window": 7, "use_sliding_window": False},
    {"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 1},
    {"sliding_window": 7, "use_sliding_window": True, "layer_types": ALTERNATE},
)


@pytest.mark.parametrize("variant", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_windows_are_those_of_transformers(variant: str, settings: dict[str, Any], tmp_path: Path) -> None:
    plain, folder = tiny_model(variant), tmp_path / "checkpoint"
    plain.save_pretrained(folder)
    held = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for key in ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types"):
        held.pop(key, None)
    (folder / "config.json").write_text(json.dumps({**held, **settings}), encoding="utf-8")

    architecture = type(plain).__name__
    config = read_config(folder, architecture)
    check_config(config, "here")
    checkpoint = Checkpoint(folder, None, architecture, "", (folder / "model.safetensors",))
    engine = lean_engine(load_weights(checkpoint, config, "float32"), "float32", tmp_path / "engine")
    reference = type(plain).from_pretrained(folder, dtype=torch.float32)
    assert worst_difference(engine, reference, num_tokens=40, num_first=23) <= 1e-4

    # `generate` of transformers, with a KV cache, from the files beside the engine. Without one it is a single pass.
    reference.config = config
    prompt = torch.arange(1, 31)[None]
    tokens = reference.generate(prompt, max_new_tokens=8, do_sample=False, use_cache=True)
    with torch.inference_mode():
        logits = reference(tokens, use_cache=False).logits
    assert tokens[0, 30:].tolist() == logits[0, 29:-1].argmax(-1).tolist()


@pytest.mark.parametrize(("variant", "stated"), [("llama", "qwen3"), ("qwen3", "llama")])
def test_the_type_that_a_config_names_does_not_count(variant: str, stated: str, tmp_path: Path) -> None:
    plain = tiny_model(variant)
    plain.config.model_type = stated
    assert worst_difference(lean_engine(plain, "float32", tmp_path), tiny_model(variant)) <= 1e-4
