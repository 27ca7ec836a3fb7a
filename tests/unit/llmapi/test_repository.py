"""The repository for the LLM API, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
import yaml

from pipeline.config.folders import folders
from pipeline.config.schema import ResolvedConfig
from pipeline.errors import ConfigError, RepositoryError
from pipeline.llmapi import Method
from pipeline.llmapi.repository import llmapi_config, render_llmapi
from pipeline.llmapi.settings import DraftSettings, draft_settings
from pipeline.repository import model_config
from pipeline.repository.contract import model_contract
from tests.command_line import exit_code
from tests.trt_configs import trt_config

SOURCE = folders().home / "triton_repo"


def rendered(tmp_path: Path, method: Method, resolved: ResolvedConfig) -> tuple[Path, dict, DraftSettings]:  # type: ignore[type-arg]
    folder = render_llmapi(resolved, method, tmp_path / method, SOURCE) / "tensorrt_llm"
    arguments = yaml.safe_load((folder / "1" / "model.yaml").read_text())
    return folder, arguments, DraftSettings.model_validate_json((folder / "1" / "drafts.json").read_bytes())


@pytest.mark.parametrize("method", get_args(Method))
@pytest.mark.parametrize("profile", ["latency", "balanced", "throughput"])
def test_every_method_and_profile_is_rendered(tmp_path, method, profile):
    folder, arguments, drafts = rendered(tmp_path, method, trt_config("llama2-13b", profile))

    config = model_config.read(folder / "config.pbtxt")
    assert config == llmapi_config()
    contract = model_contract("llmapi")
    assert [tensor.name for tensor in config.input] == [tensor.name for tensor in contract.inputs]
    assert (len(config.input), len(config.output), config.max_batch_size) == (17, 16, 0)
    assert not config.model_transaction_policy.decoupled  # as stock: `infer` works
    assert (folder / "1" / "model.py").read_bytes() == (SOURCE / "llmapi/tensorrt_llm/1/model.py").read_bytes()
    assert arguments["triton_config"] == {"max_batch_size": 0, "decoupled": False, "cancellation_check_period_ms": 100}
    assert arguments["model"] == "meta-llama/Llama-2-13b-chat-hf"
    assert drafts.method == method
    assert ("speculative_config" in arguments) is (method != "none")
    assert arguments.get("disable_overlap_scheduler", False) is (method != "none")


def test_a_model_that_streams_is_asked_for(tmp_path):
    folder = render_llmapi(trt_config("llama2-13b"), "auto", tmp_path / "r", SOURCE, decoupled=True) / "tensorrt_llm"

    assert model_config.read(folder / "config.pbtxt").model_transaction_policy.decoupled
    assert yaml.safe_load((folder / "1" / "model.yaml").read_text())["triton_config"]["decoupled"]


def test_values_come_from_model_and_profile(tmp_path):
    overrides = ("model.parallelism.tensor=2", "engine.max_batch_size=3", ".max_external_draft_len=7")
    _, arguments, drafts = rendered(tmp_path, "trie", trt_config("llama2-13b", "latency", *overrides))
    assert arguments["tensor_parallel_size"] == 2
    assert arguments["max_batch_size"] == 3
    assert arguments["dtype"] == "float16"
    assert drafts.max_draft_len == 7
    assert [source.kind for source in drafts.sources] == ["trie"]
    assert arguments["speculative_config"] == {
        "decoding_type": "NGram",
        "max_draft_len": 7,
        "max_matching_ngram_size": 2,
        "is_keep_all": True,
        "is_use_oldest": True,
        "is_public_pool": True,
    }


def test_checkpoint_ranks_and_cache_are_those_of_the_config(tmp_path, monkeypatch):
    overrides = (
        'model.checkpoint={"source": "hub", "repo_id": "a/b", "revision": "abc"}', "model.trust_remote_code=true",
        "model.parallelism.tensor=4", ".moe_expert_parallel=2", ".kv_cache_dtype=fp8",
        ".kv_cache_host_memory_bytes=1024", ".tokens_per_block=64",
    )  # fmt: skip
    _, arguments, _ = rendered(tmp_path, "trie", trt_config("llama2-13b", "latency", *overrides))
    found = {name: arguments[name] for name in ("model", "revision", "trust_remote_code", "moe_expert_parallel_size")}
    assert found == {"model": "a/b", "revision": "abc", "trust_remote_code": True, "moe_expert_parallel_size": 2}
    cache = arguments["kv_cache_config"]
    assert (cache["dtype"], cache["host_cache_size"], cache["tokens_per_block"]) == ("fp8", 1024, 64)
    assert "moe_tensor_parallel_size" not in arguments

    monkeypatch.chdir(tmp_path)
    folder = trt_config("llama2-13b", "latency", 'model.checkpoint={"source": "local", "path": "weights"}')
    _, arguments, _ = rendered(tmp_path, "ngram", folder)
    assert arguments["model"] == str(tmp_path / "weights")
    assert "revision" not in arguments


def test_settings_of_engines_only_are_refused_together(tmp_path):
    overrides = (".quantization=fp8", ".kv_cache_dtype=int8", ".context_parallel=2")
    with pytest.raises(ConfigError) as caught:
        rendered(tmp_path, "trie", trt_config("llama2-13b", "latency", *overrides))
    text = str(caught.value)
    assert text.startswith("3 faults")
    assert "tensorrt_llm.quantization: found 'fp8'; --llmapi cannot use it" in text
    assert "Use 'auto' or 'fp8'." in text


def test_what_cannot_be_served_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="which the LLM API does not read"):
        render_llmapi(trt_config("tiny-random-llama"), "trie", tmp_path / "a", SOURCE)
    no_sources = trt_config("llama2-13b", "latency", "drafting.sources=[]", "drafting.strategy=none")
    with pytest.raises(ConfigError, match=r"drafting.sources holds neither.*--llmapi suffix_automaton or ngram"):
        draft_settings(no_sources, "trie")
    assert not draft_settings(no_sources, "ngram").shared
    with pytest.raises(RepositoryError, match="LOOKAHEAD_HOME"):
        render_llmapi(trt_config(), "trie", tmp_path / "a", tmp_path)
    assert not (tmp_path / "a").exists()


def test_an_unknown_method_is_refused_with_the_known_ones(tmp_path, capsys):
    assert exit_code("repo", "-m", "llama2-13b", "--llmapi", "tree", "--out", str(tmp_path / "out")) == 2
    assert "'suffix_automaton', 'trie'" in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_the_command_writes_it(tmp_path, capsys):
    assert exit_code("repo", "-m", "llama2-13b", "--llmapi", "trie", "--out", str(tmp_path / "out"), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"folder": str(tmp_path / "out"), "models": ["tensorrt_llm"]}
