"""Checkpoints instead of a model config: folders, GGUF files, repositories of the hub."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from pipeline.config.bare_checkpoint import settings_from_folder, transport_errors
from pipeline.config.loading import RawSettings, built_models
from pipeline.config.resolution import dump_resolved, load_model_config, resolve_config
from pipeline.config.schema import LocalCheckpoint
from pipeline.errors import ConfigError
from tests.unit.checkpoint.sources import write_tensors
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


def test_a_path_is_no_name_of_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-m ./smollm2-135m` served the shipped model instead of the checkpoint in that folder."""
    folder = folder_with(tmp_path, "MistralForCausalLM", max_position_embeddings=512).rename(tmp_path / "smollm2-135m")
    write(tmp_path / "smollm2-135m.yaml", (SHIPPED.models[-1] / "smollm2-135m.yaml").read_text())
    monkeypatch.chdir(tmp_path)
    for path in ("./smollm2-135m", str(folder), f"../{tmp_path.name}/smollm2-135m"):
        assert load_model_config(path, SHIPPED).architecture == "MistralForCausalLM"
    for other in ("smollm2-135m", "./smollm2-135m.yaml"):
        assert load_model_config(other, SHIPPED).architecture == "LlamaForCausalLM"


def folder_with(tmp_path: Path, architecture: str, **config: object) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture], **config}))
    return folder


def test_a_checkpoint_is_read_once_although_each_fix_of_a_fault_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each check asked the hub again, or read the GGUF file again."""
    folder = folder_with(tmp_path, "LlamaForCausalLM", max_position_embeddings=512)
    read: list[Path] = []

    def count(folder: Path) -> RawSettings:
        read.append(folder)
        return settings_from_folder(folder)

    monkeypatch.setattr("pipeline.config.bare_checkpoint.settings_from_folder", count)
    overrides = ("engine.max_draft_tokens=4", "drafting.max_draft_tokens=8")
    with pytest.raises(ConfigError, match=r"Checked: --set drafting\.max_draft_tokens=4 helps"):
        resolve_config(str(folder), "latency", overrides, where=SHIPPED, hardware=CPU)
    assert read == [folder]


def test_an_engine_built_from_a_folder_is_named_by_its_model_afterwards(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "LlamaForCausalLM", max_position_embeddings=512)
    where = replace(SHIPPED, engines=tmp_path / "engines")
    built = resolve_config(str(folder), "latency", ("model.dtype=bfloat16",), where=where, hardware=CPU)
    assert built.model.name == "model"
    settings = write(where.engines / "model" / "latency" / "resolved.yaml", dump_resolved(built))
    assert resolve_config("model", "latency", where=where, hardware=CPU) == built
    other = resolve_config("model", "throughput", ("model.dtype=float32",), where=where, hardware=CPU)
    assert (other.model.checkpoint, other.dtype) == (built.model.checkpoint, "float32")
    with pytest.raises(ConfigError, match="Did you mean 'model'"):
        resolve_config("modle", "latency", where=where, hardware=CPU)
    settings.write_text("model: {}\n")
    with pytest.raises(ConfigError, match=r"resolved\.yaml was written by another version of this program\. Name"):
        resolve_config("model", "latency", where=where, hardware=CPU)


def test_of_the_engines_of_a_model_the_settings_of_the_latest_count(tmp_path: Path) -> None:
    where = replace(SHIPPED, engines=tmp_path)
    for age, name in enumerate(("throughput", "latency", ".partial-latency")):
        path = write(tmp_path / "own" / name / "resolved.yaml", "")
        os.utime(path, (age, age))
    assert built_models(where) == {"own": tmp_path / "own" / "latency" / "resolved.yaml"}


def test_a_folder_whose_name_is_not_utf8_is_one_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "caf\udce9"
    folder.mkdir()
    path = folder_with(folder, "LlamaForCausalLM", max_position_embeddings=512)
    assert faults_of(model=str(path)).endswith("has a byte that is not UTF-8. Rename the file or the folder.")


@pytest.mark.parametrize(("written", "name"), [("./qwen", "qwen"), ("./qwen/", "qwen"), (".", "5c3a")])
def test_a_link_to_a_folder_names_the_model(
    written: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = folder_with(tmp_path, "LlamaForCausalLM", max_position_embeddings=4096).rename(tmp_path / "5c3a")
    (tmp_path / "qwen").symlink_to(snapshot)
    monkeypatch.chdir(snapshot if written == "." else tmp_path)
    model = load_model_config(written, SHIPPED)
    assert (model.name, model.checkpoint) == (name, LocalCheckpoint(path=str(snapshot.resolve())))


def test_a_fifo_as_weights_does_not_block(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "LlamaForCausalLM", max_position_embeddings=4096)
    os.mkfifo(folder / "model.safetensors")
    assert resolve_config(str(folder), "latency", where=SHIPPED, hardware=CPU).model.num_parameters == 1


@pytest.mark.parametrize("text", ["", "engine: {}", "drafting: {}"])
def test_defaults_of_a_profile_are_fitted_to_a_model_of_short_context(text: str, tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "GPT2LMHeadModel", n_positions=60)
    profile = tmp_path / "small.yaml"
    profile.write_text(text)
    resolved = resolve_config(str(folder), str(profile), where=SHIPPED, hardware=CPU).profile
    assert (resolved.engine.max_seq_len, resolved.engine.max_draft_tokens) == (60, 15)
    assert resolved.drafting.max_draft_tokens == 15


@pytest.mark.parametrize(
    ("architecture", "config", "context"),
    [
        ("Qwen2ForCausalLM", {"max_position_embeddings": 1024}, 1024),
        ("GPT2LMHeadModel", {"n_positions": 512}, 512),
        ("GPT2LMHeadModel", {"n_positions": 128}, 128),
    ],
)
@pytest.mark.parametrize("profile", ["latency", "balanced", "throughput"])
def test_a_profile_is_fitted_to_a_model_of_short_context(
    architecture: str, config: dict[str, int], context: int, profile: str, tmp_path: Path
) -> None:
    notes: list[str] = []
    folder = folder_with(tmp_path, architecture, **config)
    resolved = resolve_config(str(folder), profile, where=SHIPPED, hardware=CPU, note=notes.append)
    assert resolved.profile.engine.max_seq_len == context
    assert any(f"lowered to {context}, the context of model" in note for note in notes)
    assert resolved.lookahead.origin.startswith("default of models that were not tuned")
    with pytest.raises(ConfigError, match="has at most"):
        resolve_config(str(folder), profile, ("engine.max_seq_len=4096",), where=SHIPPED, hardware=CPU)
    with pytest.raises(ConfigError, match="has at most"):
        resolve_config(str(folder), profile, ("engine={max_seq_len: 4096}",), where=SHIPPED, hardware=CPU)
    whole = resolve_config(str(folder), profile, ("engine={max_batch_size: 2}",), where=SHIPPED, hardware=CPU)
    assert whole.profile.engine.max_seq_len == context, "the default is nobody's wish"


def gguf_file(path: Path, set_context: Callable[[GGUFWriter], object]) -> Path:
    writer = GGUFWriter(path, "qwen2")
    set_context(writer)
    writer.add_chat_template("{{ messages }}")
    writer.add_tensor("token_embd.weight", np.zeros((8, 4), np.float32))
    write_tensors(writer)
    return path


@pytest.mark.parametrize("ending", ["gguf", "GGUF"])
def test_a_gguf_file_serves_as_model(tmp_path: Path, ending: str) -> None:
    path = gguf_file(tmp_path / f"My Model.Q8.{ending}", lambda writer: writer.add_context_length(1024))
    resolved = resolve_config(str(path), "latency", where=SHIPPED, hardware=CPU)
    model = resolved.model
    assert (model.name, model.architecture, model.num_parameters) == ("my-model.q8", "Qwen2ForCausalLM", 32)
    assert (model.chat_template, resolved.profile.engine.max_seq_len) == (True, 1024)
    path.write_bytes(b"GGUF")
    assert "is incomplete or damaged (4 bytes)" in faults_of(model=str(path))
    gguf_file(path, lambda writer: writer.add_string("qwen2.context_length", "long"))
    assert "model.max_position_embeddings: is missing" in faults_of(model=str(path))


def test_a_repository_of_the_hub_serves_as_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the hub's cache, as it is laid out on disk."""
    from huggingface_hub import constants

    failure: list[Exception] = [transport_errors()[-1]("no network")]

    def fail(repo_id: str) -> None:
        raise failure[0]

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.get_safetensors_metadata", fail)
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = tmp_path / "models--owner--Some-Model" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text(commit)
    config = {"architectures": ["Qwen2ForCausalLM"], "max_position_embeddings": 32768}
    (snapshot / "config.json").write_text(json.dumps(config))
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 1000}}))
    (snapshot / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    model = resolve_config("owner/Some-Model", "latency", where=SHIPPED, hardware=CPU).model
    assert (model.name, model.architecture, model.num_parameters) == ("some-model", "Qwen2ForCausalLM", 500)
    assert model.chat_template
    for metadata in ([], None, {"total_size": "x"}, {"total_size": float("nan")}):  # the number is only an estimate
        (snapshot / "model.safetensors.index.json").write_text(json.dumps({"metadata": metadata}))
        model = resolve_config("owner/Some-Model", "latency", where=SHIPPED, hardware=CPU).model
        assert model.num_parameters == 1
    failure[0] = TypeError("a bug, which must not pass as a hub that does not answer")
    with pytest.raises(TypeError, match="a bug"):
        resolve_config("owner/Some-Model", "latency", where=SHIPPED, hardware=CPU)
    assert "owner/other is not in the local cache" in faults_of(model="owner/other")
    assert "There is no model './owner'" in faults_of(model="./owner")
