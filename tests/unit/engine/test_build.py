"""Builds are whole, skipped when nothing changed, shared between profiles, and refused if anything changed since."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.checkpoint.fetch import fetch
from pipeline.checkpoint.hashing import file_sha256
from pipeline.config.hardware import Hardware
from pipeline.config.places import Places, places
from pipeline.config.resolution import resolve_config
from pipeline.config.schema import ResolvedConfig
from pipeline.engine import artifact as artifact_room
from pipeline.engine import fingerprint as fingerprint_room
from pipeline.engine.artifact import artifact_dir, build_lock, load_artifact
from pipeline.engine.build import build_engine
from pipeline.engine.plan import engine_plan
from pipeline.engine.removal import removable, remove, require_unused
from pipeline.engine.torch import build as torch_build
from pipeline.errors import BuildError, CheckpointError

CPU = Hardware(gpu=None, compute_capability=0, has_tensorrt_llm=False)


@pytest.fixture
def where(tmp_path: Path) -> Places:
    return Places(home=places({}).home, engines=tmp_path / "engines", cache=tmp_path / "cache")


@pytest.fixture
def built(where: Places) -> Path:
    """The latency engine of the tiny model."""
    return build_engine(tiny(), where).artifact.folder


def tiny(*overrides: str, profile: str = "latency") -> ResolvedConfig:
    return resolve_config("tiny-random-llama", profile, overrides, where=places({}), hardware=CPU)


def fault(folder: Path, where: Places) -> str:
    with pytest.raises(BuildError) as caught:
        load_artifact(folder, where.cache)
    return str(caught.value)


def test_the_artefact_holds_what_the_engine_and_the_tokenizer_load(built: Path, where: Places) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    artifact = load_artifact(built, where.cache)
    assert artifact.resolved == tiny()
    assert built == artifact_dir(where, "tiny-random-llama", "latency")
    model = AutoModelForCausalLM.from_pretrained(artifact.engine_dir)
    assert sum(parameter.numel() for parameter in model.parameters()) == artifact.resolved.model.num_parameters
    assert str(model.dtype) == "torch.float32"
    assert model.generation_config.eos_token_id == AutoTokenizer.from_pretrained(artifact.tokenizer_dir).eos_token_id
    for entry in artifact.manifest.files:
        path = built / entry.path
        assert (path.stat().st_size, file_sha256(path)) == (entry.size, entry.sha256)
        assert path.stat().st_mode & 0o777 == 0o644
    assert artifact.manifest.fingerprint.libraries.keys() >= {"torch", "transformers"}
    assert artifact.manifest.fingerprint.flags["engine.max_batch_size"] == 4


def test_dtype_is_that_of_the_config(where: Places) -> None:
    from safetensors import safe_open

    folder = build_engine(tiny("model.dtype=bfloat16"), where).artifact.engine_dir
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"BF16"}  # noqa: SIM118 (no mapping)


def test_a_second_build_does_nothing(built: Path, where: Places) -> None:
    before = {path: path.stat().st_mtime_ns for path in built.rglob("*")}
    result = build_engine(tiny(), where)
    assert result.outcome == "reused"
    assert {path: path.stat().st_mtime_ns for path in built.rglob("*")} == before


def test_settings_that_the_engine_does_not_depend_on_are_only_updated(built: Path, where: Places) -> None:
    weights = (built / "engine" / "model.safetensors").stat()
    (built / "cost_curve.json").write_text("{}", encoding="utf-8")
    result = build_engine(tiny("server.http_port=0", "drafting.strategy=trie"), where)
    assert result.outcome == "updated"
    assert result.artifact.resolved.profile.server.http_port == 0
    now = (built / "engine" / "model.safetensors").stat()
    assert (now.st_ino, now.st_ctime_ns) == (weights.st_ino, weights.st_ctime_ns), "its remembered hash stays valid"
    assert (built / "cost_curve.json").is_file(), "measurements of the engine stay valid"


@pytest.mark.parametrize("change", ["engine.max_batch_size=2", "model.lookahead.latency.max_window_size=2"])
def test_every_build_flag_and_the_window_make_another_engine(change: str, built: Path, where: Places) -> None:
    before = load_artifact(built, where.cache).manifest.fingerprint_digest
    result = build_engine(tiny(change), where)
    assert result.outcome == "shared", "its weights are the same"
    assert result.artifact.manifest.fingerprint_digest != before


def test_profiles_share_weights_on_disk(built: Path, where: Places) -> None:
    result = build_engine(tiny(profile="throughput"), where)
    assert result.outcome == "shared"
    weights = [folder / "engine" / "model.safetensors" for folder in (built, result.artifact.folder)]
    assert os.path.samefile(*weights)
    remove([built])
    load_artifact(result.artifact.folder, where.cache)


def test_other_weights_are_not_shared(built: Path, where: Places) -> None:
    assert build_engine(tiny("model.checkpoint.seed=1", profile="throughput"), where).outcome == "built"
    assert build_engine(tiny("model.dtype=bfloat16", profile="balanced"), where).outcome == "built"


def test_force_builds_again(built: Path, where: Places) -> None:
    assert build_engine(tiny(), where, force=True).outcome == "built"


def test_a_failing_build_keeps_the_old_engine_and_leaves_nothing_else(
    built: Path, where: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise CheckpointError("no weights")

    monkeypatch.setattr(torch_build, "write_weights", fail)
    with pytest.raises(CheckpointError):
        build_engine(tiny(), where, force=True)
    assert load_artifact(built, where.cache).resolved == tiny()
    assert sorted(path.name for path in built.parent.iterdir()) == ["latency"]


def test_a_first_build_that_fails_leaves_no_folder(where: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise CheckpointError("no weights")

    monkeypatch.setattr(torch_build, "write_weights", fail)
    with pytest.raises(CheckpointError):
        build_engine(tiny(), where)
    assert [path.name for path in where.engines.iterdir()] == [".locks"]


def test_a_config_that_the_backend_refuses_is_told_before_the_weights_are_loaded(
    where: Places, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learned positions end at the checkpoint's number: a longer prompt would fail, and with it its whole pass."""
    monkeypatch.setattr(torch_build, "write_weights", lambda *arguments: pytest.fail("weights are loaded"))
    monkeypatch.setattr(torch_build, "write_tokenizer", lambda *arguments: pytest.fail("the tokenizer is loaded"))
    with pytest.raises(CheckpointError, match=r"max_position_embeddings: found 8192; .* made for at most 4096 pos"):
        build_engine(tiny("model.max_position_embeddings=8192"), where, force=True)
    for key, value, expected in (
        ("quantization_config", {"quant_method": "awq"}, "quant_method 'awq'"),
        ("num_attention_heads", 0, "is no config of a LlamaForCausalLM"),
    ):
        folder = tmp_path / key
        shutil.copytree(built / "engine", folder)
        shutil.copytree(built / "tokenizer", folder, dirs_exist_ok=True)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps({**config, key: value}), encoding="utf-8")
        with pytest.raises(CheckpointError, match=expected):
            build_engine(resolve_config(str(folder), "latency", where=places({}), hardware=CPU), where)


def test_too_little_memory_is_said_before_the_weights_are_read(where: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("M", (), {"available": 1000})())
    with pytest.raises(BuildError, match=r"needs about 0\.0 GB of memory; 0\.0 GB are available"):
        build_engine(tiny(), where)
    assert not artifact_dir(where, "tiny-random-llama", "latency").exists()


def test_a_built_engine_from_the_hub_is_used_without_the_hub(
    built: Path, where: Places, monkeypatch: pytest.MonkeyPatch
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


def test_a_checkpoint_with_missing_tensors_is_refused(where: Places, built: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "lacking"
    shutil.copytree(built / "engine", folder)
    shutil.copytree(built / "tokenizer", folder, dirs_exist_ok=True)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    resolved = resolve_config(str(folder), "latency", where=places({}), hardware=CPU)
    with pytest.raises(CheckpointError, match=r"lacks tensors .* model\.layers\.1\.mlp\.up_proj\.weight \(1 in all\)"):
        build_engine(resolved, where)


def flip_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()  # hard links of other profiles keep the old bytes
    path.write_bytes(data)


def rename_in_manifest(path: Path) -> None:
    manifest = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**manifest, "model": "another"}), encoding="utf-8")


SPOILERS: list[tuple[Callable[[Path], object], str]] = [
    (lambda folder: flip_byte(folder / "engine" / "model.safetensors"), "SHA-256 differs from the manifest"),
    (lambda folder: flip_byte(folder / "tokenizer" / "tokenizer.json"), "SHA-256 differs from the manifest"),
    (lambda folder: flip_byte(folder / "resolved.yaml"), "SHA-256 differs from the manifest"),
    (lambda folder: (folder / "engine" / "model.safetensors").write_bytes(b""), "has 0 bytes; it was built with"),
    (lambda folder: (folder / "engine" / "config.json").unlink(), "lacks engine/config.json"),
    (lambda folder: (folder / "engine" / "extra.safetensors").write_bytes(b"x"), "holds engine/extra.safetensors"),
    (lambda folder: (folder / "engine" / "extra").symlink_to("/nowhere"), "holds engine/extra"),
    (lambda folder: rename_in_manifest(folder / "manifest.json"), "names another model or profile than resolved.yaml"),
    (lambda folder: (folder / "manifest.json").unlink(), "There is no engine in"),
    (lambda folder: (folder / "manifest.json").write_text("{}", encoding="utf-8"), "cannot be read"),
    (lambda folder: shutil.rmtree(folder), "There is no engine in"),
]


@pytest.mark.parametrize(("spoil", "expected"), SPOILERS)
def test_a_changed_artefact_is_refused_with_reason_and_command_and_built_anew(
    spoil: Callable[[Path], object], expected: str, built: Path, where: Places
) -> None:
    spoil(built)
    text = fault(built, where)
    assert expected in text
    assert "lookahead engine --model tiny-random-llama --profile latency" in text
    assert build_engine(tiny(), where).outcome == "built"
    load_artifact(built, where.cache)


def test_a_fingerprint_edited_in_the_manifest_is_noticed(built: Path, where: Places) -> None:
    manifest = json.loads((built / "manifest.json").read_text(encoding="utf-8"))
    manifest["fingerprint"]["flags"]["engine.max_batch_size"] = 64
    (built / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert "its fingerprint does not match its digest" in fault(built, where)


def test_an_engine_of_another_environment_is_refused_unless_it_is_only_read(
    built: Path, where: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = fingerprint_room.library_versions("torch") | {"transformers": "9.9"}
    monkeypatch.setattr(artifact_room, "library_versions", lambda backend: versions)
    monkeypatch.setattr(artifact_room, "device_architecture", lambda device: "cuda-sm90")
    text = fault(built, where)
    assert "device cpu-" in text
    assert "instead of cuda-sm90" in text
    assert "instead of 9.9" in text
    assert load_artifact(built, where.cache, check_runnable=False).resolved == tiny()


def test_a_missing_library_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fingerprint_room._LIBRARIES, "torch", ("no-such-package",))
    with pytest.raises(BuildError, match="needs the package no-such-package"):
        fingerprint_room.library_versions("torch")


def test_plan_says_what_a_build_would_do(where: Places) -> None:
    assert engine_plan(tiny(), where)["state"] == "not built"
    assert not where.engines.exists(), "a plan writes nothing"
    build_engine(tiny(), where)
    assert engine_plan(tiny(), where)["state"] == "up to date"
    assert engine_plan(tiny("server.http_port=0"), where)["state"] == "engine up to date, settings to be updated"
    state = engine_plan(tiny("engine.max_batch_size=2"), where)["state"]
    assert state == "to be built again: engine.max_batch_size 2 instead of 4"


def test_clean_finds_engines_and_leftovers_only(built: Path, where: Places) -> None:
    (built.parent / ".partial-latency-x").mkdir()
    (built.parent / "notes").mkdir()
    found = {path.name for path in removable(where, None, cache=True)}
    assert found == {"latency", ".partial-latency-x", "random"}
    with pytest.raises(BuildError, match="no engines of 'other'"):
        removable(where, "other", cache=False)
    remove(removable(where, "tiny-random-llama", cache=False))
    assert {path.name for path in built.parent.iterdir()} == {"notes"}


def test_clean_leaves_what_is_served_or_being_built(built: Path, where: Places) -> None:
    folders = removable(where, None, cache=True)
    require_unused(where, folders, None)
    require_unused(where, folders, where.engines / "another" / "latency" / "repository")
    with pytest.raises(BuildError, match=r"latency is being served\. Stop"):
        require_unused(where, folders, built / "repository")
    with (
        build_lock(where, "tiny-random-llama", pytest.fail),
        pytest.raises(BuildError, match="An engine of tiny-random-llama is being built"),
    ):
        require_unused(where, folders, None)
    require_unused(where, folders, None)


def test_what_the_machine_lacks_is_told_before_a_download(where: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(resolved: ResolvedConfig, folder: Path) -> None:
        raise BuildError("too little memory")

    monkeypatch.setattr(torch_build, "require_resources", refuse)
    notes: list[str] = []
    with pytest.raises(BuildError, match="too little memory"):
        build_engine(tiny(), where, note=notes.append)
    assert not [note for note in notes if note.startswith("checkpoint")]


def test_what_is_built_needs_no_room(built: Path, where: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_build, "require_resources", lambda resolved, folder: pytest.fail("nothing is built"))
    assert build_engine(tiny(), where).outcome == "reused"
