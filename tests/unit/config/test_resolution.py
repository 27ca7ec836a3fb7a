"""Resolution of a model, a profile and overrides."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.hardware import Hardware
from pipeline.config.resolution import load_resolved, resolve_config
from pipeline.config.rules import LOOKAHEAD_OFF
from pipeline.config.schema import TrieDraftConfig
from pipeline.errors import ConfigError
from tests.unit.config.shipped import CPU, H100, SHIPPED, write


def test_overrides_reach_profile_and_model() -> None:
    resolved = resolve_config(
        "smollm2-135m",
        "latency",
        [
            "engine.max_batch_size=8",
            "model.dtype=bfloat16",
            "drafting.sources.0.branch_length=5",
            "server.http_port=0",
        ],
        where=SHIPPED,
        hardware=CPU,
    )
    assert resolved.profile.engine.max_batch_size == 8
    assert resolved.dtype == "bfloat16"
    assert resolved.profile.drafting.sources[0].branch_length == 5  # type: ignore[union-attr]
    assert resolved.profile.server.http_port == 0
    assert resolved.profile.engine.max_seq_len == 4096, "the rest of the section stays"


def test_the_path_of_a_snapshot_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = ["drafting.sources.0.snapshot=past.trie"]
    first, *_ = resolve_config(
        "smollm2-135m", "latency", overrides, where=SHIPPED, hardware=CPU
    ).profile.drafting.sources
    assert isinstance(first, TrieDraftConfig)
    assert first.snapshot == str(tmp_path / "past.trie")


def test_a_model_without_lookahead_values_has_it_off() -> None:
    resolved = resolve_config("smollm2-135m", "latency", ["model.lookahead={}"], where=SHIPPED, hardware=CPU)
    assert resolved.lookahead == LOOKAHEAD_OFF
    assert resolved.lookahead.max_draft_len == 0


def test_backend_is_settled_by_what_the_machine_has() -> None:
    def backend(hardware: Hardware, *overrides: str) -> tuple[str, str]:
        resolved = resolve_config("llama2-7b", "latency", overrides, where=SHIPPED, hardware=hardware)
        return resolved.backend, resolved.device

    assert backend(CPU) == ("torch", "cpu")
    assert backend(H100) == ("tensorrt_llm", "cuda")
    assert backend(H100, "device=cpu") == ("torch", "cpu")
    assert backend(H100, "backend=torch") == ("torch", "cuda")
    assert backend(CPU, "backend=tensorrt_llm") == ("tensorrt_llm", "cuda"), "plans are made on any machine"
    assert backend(Hardware("V100", 70, has_tensorrt_llm=True)) == ("torch", "cuda")


def test_resolved_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_resolved(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="is not a resolved config"):
        load_resolved(write(tmp_path / "list.yaml", "[1]"))
    with pytest.raises(ConfigError, match=r"model: is missing"):
        load_resolved(write(tmp_path / "half.yaml", "device: cpu\n"))


def test_sizes_that_are_written_anew_lose_what_was_said_of_the_old_ones(tmp_path: Path) -> None:
    one = "model.lookahead.latency.max_window_size=3"
    resolved = resolve_config("llama2-13b", "latency", (one,), where=SHIPPED, hardware=H100)
    assert resolved.lookahead.origin == "set on the command line"
    both = (one, "model.lookahead.latency.origin=measured here")
    assert (
        resolve_config("llama2-13b", "latency", both, where=SHIPPED, hardware=H100).lookahead.origin == "measured here"
    )

    mine = tmp_path / "mine.yaml"
    text = (SHIPPED.home / "configs/models/llama2-7b.yaml").read_text(encoding="utf-8")
    mine.write_text(text + "\nlookahead: {latency: {max_window_size: 3}}\n", encoding="utf-8")
    resolved = resolve_config(str(mine), "latency", where=SHIPPED, hardware=H100)
    assert (resolved.lookahead.max_window_size, resolved.lookahead.origin) == (3, "unstated")
    assert resolve_config("llama2-7b", "latency", where=SHIPPED, hardware=H100).lookahead.origin.startswith("arXiv")
