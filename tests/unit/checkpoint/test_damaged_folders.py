"""Checkpoint folders with damage in each file: one message each, and nothing is left behind."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.checkpoint.local import open_folder
from pipeline.config.folders import Folders, folders
from pipeline.config.resolution import resolve_config
from pipeline.engine.build import build_engine
from pipeline.errors import UserError
from tests.unit.checkpoint.sources import Spoil, moved, setting, text
from tests.unit.config.shipped import CPU


def built(folder: Path, *overrides: str) -> Path:
    where = Folders(home=folders({}).home, engines=folder.parent / "engines", cache=folder.parent / "cache")
    resolved = resolve_config(str(folder), "latency", overrides, where=folders({}), hardware=CPU)
    return build_engine(resolved, where).artifact.folder


def header(change: Callable[[dict[str, Any]], object]) -> Spoil:
    """Another header before the same weights."""

    def spoil(folder: Path) -> None:
        data = (folder / "model.safetensors").read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        entries = json.loads(data[8 : 8 + size])
        change(entries)
        written = json.dumps(entries).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(written)) + written + data[8 + size :])

    return spoil


def tensor(**values: Any) -> Spoil:
    return header(lambda entries: entries["model.norm.weight"].update(values))


def shards(*, metadata: bool = True, **names: Any) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
        index = {"metadata": {}, "weight_map": {"model.norm.weight": "model-00001-of-00001.safetensors", **names}}
        if not metadata:
            del index["metadata"]
        text("model.safetensors.index.json", json.dumps(index))(folder)

    return spoil


def scale(factor: float) -> Spoil:
    def spoil(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        tensors["lm_head.weight"] = torch.full_like(tensors["lm_head.weight"], factor)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return spoil


def as_folder(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()


def as_merges(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    text("vocab.json", '{"a": 0, "b": 1, "ab": 2}')(folder)
    text("merges.txt", "#version: 0.2\na b c\n")(folder)
    setting("tokenizer_config.json", tokenizer_class="GPT2Tokenizer")(folder)


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (text("config.json", "[]"), "config.json should contain a JSON object"),
        (text("config.json", "[" * 100_000), "config.json is not valid JSON"),
        (as_folder, "config.json is not a regular file. Replace it."),
        (moved("config.json", "adapter_config.json"), "is an adapter (LoRA), not a whole model"),
        (
            setting("config.json", architectures="LlamaForCausalLM"),
            "is missing (Class in the list `architectures` of the",
        ),
        (setting("config.json", architectures={"a": 1}), "is missing (Class in the list `architectures` of the"),
        (
            setting("config.json", rope_scaling={"type": "linear", "factor": "x"}),
            "factor in config.json: found 'x'; should",
        ),
        (setting("config.json", hidden_act="nope"), "transformers does not find 'nope'"),
        (setting("config.json", pad_token_id=99999), "Padding_idx must be within num_embeddings"),
        (setting("generation_config.json", eos_token_id={}), "found {}; should be a token id or a list"),
        (setting("generation_config.json", eos_token_id=True), "found True; should be a token id or a list"),
        (tensor(data_offsets=["a", "b"]), "is not a complete safetensors file"),
        (tensor(data_offsets=[0]), "is not a complete safetensors file"),
        (tensor(shape="x"), "is not a complete safetensors file"),
        (tensor(shape=[7, 7]), "is not a complete safetensors file"),
        (tensor(dtype="Q4"), "is not a complete safetensors file"),
        (header(lambda entries: entries.update({"model.norm.weight": 5})), "is not a complete safetensors file"),
        (header(lambda entries: entries["model.norm.weight"].pop("shape")), "is not a complete safetensors file"),
        (text("model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), "Run `git lfs pull`"),
        (scale(float("nan")), "not finite in float32: lm_head.weight"),
        (shards(metadata=False), "transformers does not find 'metadata'"),
        (shards(x=5), "found 5; should be the name of a safetensors file beside it"),
        (shards(x=["a"]), "found ['a']; should be the name of a safetensors file beside it"),
        (shards(x="pytorch_model.bin"), "found 'pytorch_model.bin'; should be the name of a safetensors file"),
        (setting("tokenizer_config.json", model_max_length="x"), "The tokenizer of"),
        (shards(x="/etc/hostname"), "found '/etc/hostname'; should be the name of a safetensors file beside it"),
        (as_merges, "The tokenizer of"),
        (moved("tokenizer.json", "vocab.txt"), "instantiate the backend tokenizer from one of: (1)"),
    ],
)
def test_each_damage_is_one_sentence(spoil: Spoil, expected: str, folder: Path) -> None:
    spoil(folder)
    with pytest.raises(UserError) as caught:
        built(folder)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list((folder.parent / "engines").glob("checkpoint*"))
    assert not (folder.parent / "cache").exists()


def test_what_does_not_fit_into_16_bit_is_refused_there_alone(folder: Path) -> None:
    scale(1e6)(folder)
    with pytest.raises(UserError, match=r"not finite in float16: lm_head\.weight"):
        built(folder, "model.dtype=float16")
    built(folder)


def test_a_config_may_request_attentions(folder: Path) -> None:
    setting("config.json", output_attentions=True)(folder)
    built(folder)


def test_the_weights_that_transformers_reads_are_those_that_count(folder: Path, tmp_path: Path) -> None:
    """It takes model.safetensors even where there are shards as well."""
    single = (folder / "model.safetensors").read_bytes()
    shards()(folder)
    (folder / "model.safetensors").write_bytes(single)
    before = open_folder(folder, "LlamaForCausalLM", tmp_path)
    assert before.weight_files == (folder / "model.safetensors",)
    scale(0.0)(folder)
    assert open_folder(folder, "LlamaForCausalLM", tmp_path).content_hash != before.content_hash
