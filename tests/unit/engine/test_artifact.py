"""Artifacts are refused if anything changed since they were built."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.backends import torch as torch_backend
from pipeline.checkpoint.hashing import file_sha256
from pipeline.config.folders import Folders
from pipeline.engine.artifact import artifact_dir, load_artifact
from pipeline.engine.build import build_engine
from pipeline.engine.fingerprint import library_versions
from pipeline.engine.torch.build import LIBRARIES
from pipeline.errors import BuildError
from tests.unit.engine.builds import tiny


def fault(folder: Path, where: Folders) -> str:
    with pytest.raises(BuildError) as caught:
        load_artifact(folder, where.cache)
    return str(caught.value)


def test_the_artifact_holds_what_the_engine_and_the_tokenizer_load(built: Path, where: Folders) -> None:
    from transformers import AutoTokenizer, GenerationConfig

    from pipeline.engine.torch.lean.layout import load_model

    artifact = load_artifact(built, where.cache)
    assert artifact.resolved == tiny()
    assert built == artifact_dir(where, "tiny-random-llama", "latency")
    model = load_model(artifact.engine_dir)
    assert sum(parameter.numel() for parameter in model.parameters()) == artifact.resolved.model.num_parameters
    assert str(model.dtype) == "torch.float32"
    end_id = GenerationConfig.from_pretrained(artifact.engine_dir).eos_token_id
    assert end_id == AutoTokenizer.from_pretrained(artifact.tokenizer_dir).eos_token_id
    for entry in artifact.manifest.files:
        path = built / entry.path
        assert (path.stat().st_size, file_sha256(path)) == (entry.size, entry.sha256)
        assert path.stat().st_mode & 0o777 == 0o644
    assert artifact.manifest.fingerprint.libraries.keys() >= {"torch", "transformers"}
    assert artifact.manifest.fingerprint.flags["engine.max_batch_size"] == 4


def flip_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()  # hard links of other profiles keep the old bytes
    path.write_bytes(data)


SPOILERS: list[tuple[Callable[[Path], object], str]] = [
    (lambda folder: flip_byte(folder / "engine" / "model.safetensors"), "SHA-256 differs from the manifest"),
    (lambda folder: flip_byte(folder / "tokenizer" / "tokenizer.json"), "SHA-256 differs from the manifest"),
    (lambda folder: flip_byte(folder / "resolved.yaml"), "SHA-256 differs from the manifest"),
    (lambda folder: (folder / "engine" / "model.safetensors").write_bytes(b""), "has 0 bytes; it was built with"),
    (lambda folder: (folder / "engine" / "config.json").unlink(), "lacks engine/config.json"),
    (lambda folder: (folder / "engine" / "extra.safetensors").write_bytes(b"x"), "holds engine/extra.safetensors"),
    (lambda folder: (folder / "engine" / "extra").symlink_to("/nowhere"), "holds engine/extra"),
    (lambda folder: (folder / "manifest.json").unlink(), "There is no engine in"),
    (lambda folder: (folder / "manifest.json").write_text("{}", encoding="utf-8"), "cannot be read"),
    (lambda folder: shutil.rmtree(folder), "There is no engine in"),
]


@pytest.mark.parametrize(("spoil", "expected"), SPOILERS)
def test_a_changed_artifact_is_refused_with_reason_and_command_and_built_anew(
    spoil: Callable[[Path], object], expected: str, built: Path, where: Folders
) -> None:
    spoil(built)
    text = fault(built, where)
    assert expected in text
    assert "lookahead engine --model tiny-random-llama --profile latency" in text
    assert build_engine(tiny(), where).outcome == "built"
    load_artifact(built, where.cache)


def test_a_fingerprint_edited_in_the_manifest_is_noticed(built: Path, where: Folders) -> None:
    manifest = json.loads((built / "manifest.json").read_text(encoding="utf-8"))
    manifest["fingerprint"]["flags"]["engine.max_batch_size"] = 64
    (built / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert "its fingerprint does not match its digest" in fault(built, where)


def test_an_engine_of_another_environment_is_refused_unless_it_is_only_read(
    built: Path, where: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = library_versions("torch", LIBRARIES) | {"transformers": "9.9"}
    monkeypatch.setattr(torch_backend, "library_versions", lambda backend, names: versions)
    monkeypatch.setattr(torch_backend, "device_architecture", lambda device: "cuda-sm90")
    text = fault(built, where)
    assert "device cpu-" in text
    assert "instead of cuda-sm90" in text
    assert "instead of 9.9" in text
    assert load_artifact(built, where.cache, check_runnable=False).resolved == tiny()


def test_a_servers_settings_replace_those_of_the_artifact(
    built: Path, where: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("pipeline.engine.artifact.load_resolved")
    settings = tiny().with_settings("scheduling", max_queue_size=3)
    assert load_artifact(built, where.cache, resolved=settings).resolved == settings


def test_a_missing_library_is_a_sentence() -> None:
    with pytest.raises(BuildError, match="needs the package no-such-package"):
        library_versions("torch", ("no-such-package",))
