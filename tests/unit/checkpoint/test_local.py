"""Checkpoint folders: the content of their hash, and one message for each kind of damage."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest

from pipeline.checkpoint.fetch import fetch
from pipeline.config.schema import LocalCheckpoint
from tests.unit.checkpoint.sources import DYNAMIC_ROPE, Spoil, fault, model_of, moved, setting, text


def test_local_folder_and_its_hash_follows_every_file(folder: Path, tmp_path: Path) -> None:
    source = LocalCheckpoint(path=str(folder))
    first = fetch(model_of(source), tmp_path)
    assert first.architecture == "LlamaForCausalLM"
    assert fetch(model_of(source), tmp_path).content_hash == first.content_hash
    (folder / "chat_template.jinja").write_text("changed", encoding="utf-8")
    assert fetch(model_of(source), tmp_path).content_hash != first.content_hash


def shard(folder: Path) -> list[Path]:
    """Split model.safetensors into two shards with an index."""
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    halves = [names[: len(names) // 2], names[len(names) // 2 :]]
    paths = [folder / f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for path, half in zip(paths, halves, strict=True):
        save_file({name: tensors[name] for name in half}, path, metadata={"format": "pt"})
    weight_map = {name: path.name for path, half in zip(paths, halves, strict=True) for name in half}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    (folder / "model.safetensors").unlink()
    return paths


def test_sharded_folder(folder: Path, tmp_path: Path) -> None:
    paths = shard(folder)
    assert set(fetch(model_of(LocalCheckpoint(path=str(folder))), tmp_path).weight_files) == set(paths)
    paths[1].unlink()
    assert f"lacks {paths[1].name}" in fault(LocalCheckpoint(path=str(folder)), tmp_path)


def truncate(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-1])


def bad_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 10) + b"not json!!" + bytes(100))


def empty_index(folder: Path) -> None:
    shard(folder)
    text("model.safetensors.index.json", "{}")(folder)


LAYERED_ROPE = {"full_attention": {"rope_type": "longrope"}, "sliding_attention": {}}


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (truncate, "is not a complete safetensors file"),
        (bad_header, "is not a complete safetensors file"),
        (text("model.safetensors", ""), "is not a complete safetensors file"),
        (empty_index, "has no weight_map"),
        (moved("model.safetensors", "pytorch_model.bin"), "Convert them to safetensors"),
        (moved("model.safetensors", "model.gguf"), "source: gguf"),
        (moved("model.safetensors", "elsewhere"), "has no weights"),
        (
            moved("model.safetensors", "consolidated.safetensors"),
            "neither model.safetensors nor model.safetensors.index.json; it has consolidated.safetensors. Fetch",
        ),
        (text("config.json", "{"), "is not valid JSON"),
        (
            setting("config.json", architectures=["MambaForCausalLM"]),
            "has architecture 'MambaForCausalLM'; the model config has 'LlamaForCausalLM'. Correct the config.",
        ),
        (
            setting("config.json", architectures=[]),
            'config.json names no class. Add "architectures": ["LlamaForCausalLM"] to it',
        ),
        (setting("config.json", architectures=["Qwen2ForCausalLM"]), "the model config has 'LlamaForCausalLM'"),
        (DYNAMIC_ROPE, "rotary embeddings of type 'dynamic'"),
        (setting("config.json", rope_parameters=LAYERED_ROPE), "rotary embeddings of type 'longrope'"),
        # Beside rope_parameters, which say "default".
        (setting("config.json", rope_scaling={"type": "su", "factor": 2.0}), "rotary embeddings of type 'su'"),
        (
            setting("config.json", transformers_weights="other.safetensors"),  # transformers would load that file
            "names other weights (transformers_weights 'other.safetensors' in config.json)",
        ),
        (text("generation_config.json", "{"), "generation_config.json is not valid JSON"),
        (
            text("generation_config.json", '{"eos_token_id": ["</s>"]}'),
            "eos_token_id: found ['</s>']; should be a token id or a list of token ids",
        ),
        (moved("config.json", "elsewhere"), "is not a checkpoint: it has no config.json"),
        (moved("tokenizer.json", "elsewhere"), "has no tokenizer"),
        (shutil.rmtree, "There is no checkpoint folder"),
    ],
)
def test_spoilt_folder_is_refused_with_one_sentence(spoil: Spoil, expected: str, folder: Path, tmp_path: Path) -> None:
    spoil(folder)
    found = fault(LocalCheckpoint(path=str(folder)), tmp_path)
    assert expected in found
    assert "\n" not in found


def test_whether_a_backend_serves_a_kind_of_model_is_not_asked_here(folder: Path, tmp_path: Path) -> None:
    """TensorRT-LLM converts kinds that the torch engine does not serve; builders judge before anything is fetched."""
    (folder / "config.json").write_text('{"architectures": ["FalconForCausalLM"]}', encoding="utf-8")
    found = fetch(model_of(LocalCheckpoint(path=str(folder)), "FalconForCausalLM"), tmp_path)
    assert found.architecture == "FalconForCausalLM"


def test_code_of_a_checkpoint_is_named_and_counts_only_if_it_is_trusted(folder: Path, tmp_path: Path) -> None:
    model = model_of(LocalCheckpoint(path=str(folder)))
    trusted = model.model_copy(update={"trust_remote_code": True})
    plain = fetch(model, tmp_path)
    (folder / "modeling_own.py").write_text("raise SystemExit", encoding="utf-8")
    (folder / "own.tiktoken").write_text("", encoding="utf-8")
    assert fetch(model, tmp_path) == plain
    assert plain.code_files is None
    first = fetch(trusted, tmp_path)
    assert first.code_files == (folder / "modeling_own.py", folder / "own.tiktoken")
    (folder / "modeling_own.py").write_text("raise SystemExit(1)", encoding="utf-8")
    assert fetch(trusted, tmp_path).content_hash not in (first.content_hash, plain.content_hash)
