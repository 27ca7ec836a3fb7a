"""Builds are complete, skipped when up to date, and shared between profiles."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from pipeline import files
from pipeline.backends.torch import TorchBackend
from pipeline.checkpoint.fetch import fetch
from pipeline.config.folders import Folders, folders
from pipeline.config.loading import built_models
from pipeline.config.resolution import resolve_config
from pipeline.config.schema import ResolvedConfig
from pipeline.engine.artifact import artifact_dir, load_artifact
from pipeline.engine.build import build_engine
from pipeline.engine.plan import engine_plan
from pipeline.engine.removal import remove
from pipeline.engine.torch import build as torch_build
from pipeline.errors import BuildError, CheckpointError, UserError
from tests.unit.engine.builds import CPU, tiny


def test_dtype_is_that_of_the_config(where: Folders) -> None:
    folder = build_engine(tiny("model.dtype=float16"), where).artifact.engine_dir
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F16"}  # noqa: SIM118 (no mapping)


def test_a_second_build_does_nothing(built: Path, where: Folders) -> None:
    before = {path: path.stat().st_mtime_ns for path in built.rglob("*")}
    result = build_engine(tiny(), where)
    assert result.outcome == "reused"
    assert {path: path.stat().st_mtime_ns for path in built.rglob("*")} == before


def test_a_build_reports_the_type_of_its_weights(where: Folders) -> None:
    notes: list[str] = []
    build_engine(tiny("engine.quantization=int8"), where, note=notes.append)
    assert any("of weights to int8 for torch on cpu" in note for note in notes)


def test_settings_that_the_engine_does_not_depend_on_are_only_updated(built: Path, where: Folders) -> None:
    weights = (built / "engine" / "model.safetensors").stat()
    result = build_engine(tiny("server.http_port=0", "drafting.strategy=trie"), where)
    assert result.outcome == "updated"
    assert result.artifact.resolved.profile.server.http_port == 0
    now = (built / "engine" / "model.safetensors").stat()
    assert (now.st_ino, now.st_ctime_ns) == (weights.st_ino, weights.st_ctime_ns), "its remembered hash stays valid"


@pytest.mark.parametrize("change", ["engine.max_batch_size=2", "model.lookahead.latency.max_window_size=2"])
def test_every_build_flag_and_the_window_make_another_engine(change: str, built: Path, where: Folders) -> None:
    before = load_artifact(built, where.cache).manifest.fingerprint_digest
    result = build_engine(tiny(change), where)
    assert result.outcome == "shared", "its weights are the same"
    assert result.artifact.manifest.fingerprint_digest != before


def test_profiles_share_weights_on_disk(built: Path, where: Folders) -> None:
    result = build_engine(tiny(profile="throughput"), where)
    assert result.outcome == "shared"
    weights = [folder / "engine" / "model.safetensors" for folder in (built, result.artifact.folder)]
    assert os.path.samefile(*weights)
    remove([built])
    load_artifact(result.artifact.folder, where.cache)


def test_other_weights_are_not_shared(built: Path, where: Folders) -> None:
    assert build_engine(tiny("model.checkpoint.seed=1", profile="throughput"), where).outcome == "built"
    assert build_engine(tiny("model.dtype=bfloat16", profile="balanced"), where).outcome == "built"


def test_an_engine_that_cannot_be_written_is_used_through_links(built: Path, where: Folders, tmp_path: Path) -> None:
    for kind in (".costs", ".first_rows"):
        (built.parent / kind).mkdir()
        (built.parent / kind / "measured").touch(0o444)
    (built / "tokenizer").chmod(0o555)
    reader, notes = replace(where, engines=tmp_path / "own", shared_engines=where.engines), list[str]()
    before = {path: path.stat().st_mtime_ns for path in where.engines.rglob("*")}
    assert engine_plan(tiny(), reader)["state"] == "up to date"

    result = build_engine(tiny("server.http_port=0"), reader, note=notes.append)

    folder = result.artifact.folder
    assert result.outcome == "shared"
    assert result.artifact.resolved.profile.server.http_port == 0
    assert folder.is_relative_to(reader.engines)
    assert (folder / "engine" / "model.safetensors").readlink() == built / "engine" / "model.safetensors"
    assert all((folder.parent / kind / "measured").is_file() for kind in (".costs", ".first_rows"))
    assert (folder / "tokenizer").stat().st_mode & 0o200
    assert notes[0] == f"{where.engines} cannot be written; its engines are used through links in {reader.engines}"
    assert {path: path.stat().st_mtime_ns for path in where.engines.rglob("*")} == before
    assert build_engine(tiny("server.http_port=0"), reader).outcome == "reused"
    assert built_models(reader).keys() == {"tiny-random-llama"}

    (built / "tokenizer").chmod(0o755)
    shutil.rmtree(built)
    with pytest.raises(BuildError, match=r"lacks engine/config.json"):
        load_artifact(folder, reader.cache)
    assert build_engine(tiny(), reader).outcome == "built"


def test_a_finished_engine_needs_no_right_to_write(built: Path, where: Folders) -> None:
    """Engines may lie on a read-only disk. A lock that was opened for writing would be empty afterwards."""
    lock = where.engines / ".locks" / "tiny-random-llama"
    lock.write_text("content")
    assert build_engine(tiny(), where).outcome == "reused"
    assert lock.read_text() == "content"


def test_force_builds_again(built: Path, where: Folders) -> None:
    (built / "repository").mkdir()
    assert build_engine(tiny(), where, force=True).outcome == "built"
    assert (built / "repository").is_dir(), "a server may run from it"


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise CheckpointError("no weights")

    monkeypatch.setattr(torch_build, "load_weights", fail)


@pytest.mark.usefixtures("no_weights")
def test_a_failing_build_keeps_the_old_engine_and_leaves_nothing_else(built: Path, where: Folders) -> None:
    with pytest.raises(CheckpointError):
        build_engine(tiny(), where, force=True)
    assert load_artifact(built, where.cache).resolved == tiny()
    assert sorted(path.name for path in built.parent.iterdir()) == ["latency"]


def test_an_update_that_fails_half_way_keeps_the_engine(built: Path, where: Folders, monkeypatch) -> None:
    """The manifest did not fit the new settings, so the server of the engine could not start again."""
    create = files._partial_file

    def full(path: Path, mode: int) -> tuple[Path, BinaryIO]:
        if path.name == "manifest.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        return create(path, mode)

    monkeypatch.setattr(files, "_partial_file", full)
    with pytest.raises(OSError, match="No space"):
        build_engine(tiny("server.http_port=8100"), where)
    assert load_artifact(built, where.cache).resolved == tiny()


def test_a_build_that_fails_in_its_last_step_keeps_the_repository(built: Path, where: Folders, monkeypatch) -> None:
    (built / "repository" / "ensemble" / "1").mkdir(parents=True)
    (built / "repository" / "ensemble" / "config.pbtxt").touch()

    def replace_folder(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("pipeline.checkpoint.disk.replace_folder", replace_folder)
        with pytest.raises(UserError, match="is full"):
            build_engine(tiny(), where, force=True)
    assert (built / "repository" / "ensemble" / "config.pbtxt").is_file(), "a server may run from it"
    build_engine(tiny(), where, force=True)
    assert {path.name for path in (built / "repository" / "ensemble").iterdir()} == {"1", "config.pbtxt"}


@pytest.mark.usefixtures("no_weights")
def test_a_first_build_that_fails_leaves_no_folder(where: Folders) -> None:
    with pytest.raises(CheckpointError):
        build_engine(tiny(), where)
    assert [path.name for path in where.engines.iterdir()] == [".locks"]


def test_a_config_that_the_backend_refuses_is_reported_before_the_weights_are_loaded(
    where: Folders, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learned positions end at the checkpoint's number: a longer prompt would fail, and with it its whole pass."""
    monkeypatch.setattr(torch_build, "load_weights", lambda *arguments: pytest.fail("weights are loaded"))
    monkeypatch.setattr(torch_build, "write_tokenizer", lambda *arguments: pytest.fail("the tokenizer is loaded"))
    with pytest.raises(
        CheckpointError, match=r"max_position_embeddings: found 8192; should be at most 4096, the context length of "
    ):
        build_engine(tiny("model.max_position_embeddings=8192"), where, force=True)
    for key, value, expected in (
        ("quantization_config", {"quant_method": "awq"}, "quant_method 'awq'"),
        ("num_attention_heads", 0, "is not a config of a LlamaForCausalLM"),
    ):
        folder = tmp_path / key
        shutil.copytree(fetch(tiny().model, where.cache).folder, folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps({**config, key: value}), encoding="utf-8")
        with pytest.raises(CheckpointError, match=expected):
            build_engine(resolve_config(str(folder), "latency", where=folders({}), hardware=CPU), where)


def test_too_little_memory_is_said_before_the_weights_are_read(where: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("M", (), {"available": 1000})())
    with pytest.raises(BuildError, match=r"needs about 0\.0 GB of memory; 0\.0 GB are available"):
        build_engine(tiny(), where)
    assert not artifact_dir(where, "tiny-random-llama", "latency").exists()


@pytest.mark.parametrize(
    ("gigabytes", "quantization", "remedy"),
    [
        (30, "none", r"Use --set model\.dtype=bfloat16 \(26\.0 GB\)"),
        (30, "int8", r"Use --set engine\.quantization=none --set model\.dtype=bfloat16 \(26\.0 GB\)"),
        (20, "none", r"No setting makes the build fit here.*int8 makes an engine of 13\.0 GB.*backend=tensorrt_llm"),
    ],
)
def test_a_remedy_for_memory_is_one_that_fits(
    gigabytes: int, quantization: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.engine import memory
    from pipeline.engine.torch import build

    for room in (memory, build):
        monkeypatch.setattr(room, "available_bytes", lambda: gigabytes * 10**9)
    monkeypatch.setattr(build, "require_space", lambda *arguments: None)
    settings = ("backend=torch", "device=cpu", f"engine.quantization={quantization}")
    resolved = resolve_config("llama2-13b", "latency", settings, hardware=CPU)
    with pytest.raises(BuildError, match=remedy) as caught:
        build.require_resources(resolved, tmp_path)
    assert ("model.dtype=bfloat16" in str(caught.value)) == (gigabytes == 30)


def test_a_built_engine_from_the_hub_is_used_without_the_hub(
    built: Path, where: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*arguments: object) -> None:
        raise CheckpointError("the hub cannot be reached")

    def of_hub(repo_id: str, *overrides: str) -> ResolvedConfig:
        return tiny(f"model.checkpoint={{source: hub, repo_id: {repo_id}}}", *overrides)

    local = fetch(tiny().model, where.cache)
    monkeypatch.setattr("pipeline.engine.build.fetch", lambda model, cache_dir, check_config: local)
    build_engine(of_hub("a/b"), where)
    monkeypatch.setattr("pipeline.engine.build.fetch", unreachable)
    notes: list[str] = []
    assert build_engine(of_hub("a/b"), where, note=notes.append).outcome == "reused"
    assert "not compared with its checkpoint: the hub cannot be reached" in notes[-1]
    assert build_engine(of_hub("a/b", "engine.max_batch_size=2"), where).outcome == "shared"
    for wanted, force in ((of_hub("a/c"), False), (of_hub("a/b"), True)):
        with pytest.raises(CheckpointError):
            build_engine(wanted, where, force=force)


def test_a_built_engine_outlives_the_folder_of_its_checkpoint(where: Folders, tmp_path: Path) -> None:
    folder, settings = tmp_path / "own-model", ("backend=torch", "drafting.planner=fixed")
    shutil.copytree(fetch(tiny().model, where.cache).folder, folder)
    resolved = resolve_config(str(folder), "latency", settings, where=where, hardware=CPU)
    build_engine(resolved, where)
    (folder / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        build_engine(resolved, where)

    shutil.rmtree(folder)

    notes: list[str] = []
    assert build_engine(resolved, where, note=notes.append).outcome == "reused"
    assert "not compared with its checkpoint: There is no checkpoint folder" in notes[-1]
    other = resolve_config("own-model", "throughput", settings, where=where, hardware=CPU)
    assert build_engine(other, where).outcome == "shared"
    halved = resolve_config("own-model", "latency", (*settings, "model.dtype=bfloat16"), where=where, hardware=CPU)
    with pytest.raises(CheckpointError, match="There is no checkpoint folder"):
        build_engine(halved, where)


def test_a_checkpoint_with_missing_tensors_is_refused(where: Folders, built: Path, tmp_path: Path) -> None:
    folder = tmp_path / "lacking"
    shutil.copytree(fetch(tiny().model, where.cache).folder, folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    resolved = resolve_config(str(folder), "latency", where=folders({}), hardware=CPU)
    with pytest.raises(CheckpointError, match=r"lacks tensors .* model\.layers\.1\.mlp\.up_proj\.weight \(1 in all\)"):
        build_engine(resolved, where)


def test_plan_says_what_a_build_would_do(where: Folders) -> None:
    assert engine_plan(tiny(), where)["state"] == "not built"
    assert not where.engines.exists(), "a plan writes nothing"
    build_engine(tiny(), where)
    assert engine_plan(tiny(), where)["state"] == "up to date"
    assert engine_plan(tiny("server.http_port=0"), where)["state"] == "engine up to date, settings to be updated"
    state = engine_plan(tiny("engine.max_batch_size=2"), where)["state"]
    assert state == "to be built again: engine.max_batch_size 2 instead of 4"


def test_missing_resources_are_reported_before_a_download(where: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(resolved: ResolvedConfig, folder: Path) -> None:
        raise BuildError("too little memory")

    monkeypatch.setattr(TorchBackend, "require_resources", staticmethod(refuse))
    notes: list[str] = []
    with pytest.raises(BuildError, match="too little memory"):
        build_engine(tiny(), where, note=notes.append)
    assert not [note for note in notes if note.startswith("checkpoint")]


def test_what_is_built_needs_no_room(built: Path, where: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    fail = staticmethod(lambda resolved, folder: pytest.fail("nothing is built"))
    monkeypatch.setattr(TorchBackend, "require_resources", fail)
    assert build_engine(tiny(), where).outcome == "reused"
