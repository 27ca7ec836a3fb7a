"""Combinations of settings that are refused, by rules of configs and of the backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.resolution import resolve_config
from pipeline.errors import ConfigError
from tests.unit.config.shipped import CPU, SHIPPED, faults_of, write

KEYS = f"server.api_keys=[{{tenant: alice, key_sha256: {'ab' * 32}}}]"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["engine.max_draft_tokens=8"], "drafting.max_draft_tokens: found 32; the engine verifies"),
        (["engine.max_draft_tokens=15", "drafting.max_draft_tokens=15"], None),
        (["engine.max_draft_tokens=14", "drafting.max_draft_tokens=14"], "W = 5, N = 3, G = 3 needs 15"),
        (["engine.max_num_tokens=1024", "engine.max_batch_size=64"], "needs 64 x (32 + 1) = 2112"),
        (["engine.max_num_tokens=2111", "engine.max_batch_size=64", "engine.prefill_chunk=512"], "2112"),
        (["engine.prefill_chunk=8192"], "engine.prefill_chunk: found 8192; a pass holds at most"),
        (["engine.max_seq_len=8193"], "has at most 8192 positions"),
        (["engine.max_seq_len=128"], "leaves no tokens for prompt and output"),
        (["engine.max_draft_tokens=0", "drafting.max_draft_tokens=0", "drafting.strategy=none"], None),
        (["engine.max_draft_tokens=0", "drafting.max_draft_tokens=0"], "so it should be 'none'"),
        (
            ["server.http_port=9000", "server.metrics_port=9000"],
            "server.metrics_port: found 9000, the same as server.http_port",
        ),
        (["server.http_port=0", "server.grpc_port=0", "server.metrics_port=0"], None),
        (["server.openai_port=8000"], "server.openai_port: found 8000, the same as server.http_port"),
        (["server.openai_port=8000", "server.openai=false"], None),
        (["server.replicas=2"], None),
        (["server.replicas=2", "server.openai=false"], "server.replicas: found 2, and server.openai is false"),
        ([KEYS], None),
        ([KEYS, "server.gateway.enabled=false"], "only the gateway checks keys. Enable it, or remove the keys."),
        (["server.side_channel_safe=true"], None),
        (["server.side_channel_safe=true", "server.gateway.enabled=false"], "which returns figures of drafts"),
        (["server.side_channel_safe=true", "server.gateway.inner_models=true"], "which returns figures of drafts"),
        (["drafting.sources=[{kind: trie}, {kind: trie}]"], "holds 'trie' twice"),
        (
            ["drafting.strategy=hybrid", "drafting.sources=[{kind: supplied}]"],
            "found supplied; drafting.strategy = 'hybrid'",
        ),
        (["drafting.strategy=trie", "drafting.sources=[{kind: recycling}]"], "needs one of trie, prompt"),
        (["device=cuda"], "torch finds no CUDA device"),
        (["backend=tensorrt_llm", "device=cpu"], "backend tensorrt_llm needs a GPU"),
        (["model.parallelism.pipeline=2"], "the torch backend has no pipeline parallelism"),
        (
            ["model.parallelism.tensor=2", "engine.lookahead_parallel=2"],
            "engine.lookahead_parallel: found 2, and model.parallelism.tensor is 2; the torch backend does not combine",
        ),
        (
            [
                "model.parallelism.tensor=3",
                "model.shape={hidden_size: 64, intermediate_size: 96, num_layers: 2, num_attention_heads: 4, "
                "num_key_value_heads: 2, head_size: 16, vocab_size: 512}",
            ],
            "model.parallelism.tensor: found 3, which does not divide the 2 key/value heads",
        ),
        (
            ["model.parallelism.tensor=2", "engine.quantization=int8"],
            "found 'int8', which does not work with model.parallelism.tensor = 2 ranks",
        ),
        (["model.lookahead.latncy.max_window_size=3"], "model.lookahead.latncy.max_ngram_size: is missing"),
        (
            ["model.lookahead.fast={max_window_size: 2, max_ngram_size: 2, max_verification_set_size: 1}"],
            "model.lookahead.fast: is not a profile. Known: default, balanced",
        ),
        (
            ["model.lookahead.latency={max_window_size: 8, max_ngram_size: 1, max_verification_set_size: 1}"],
            "--set: model.lookahead.latency: found (W, N, G) = (8, 1, 1); N = 1 switches lookahead off and needs "
            "W = 1 and G = 0. Set those, or N to 2 or more.",
        ),
        (
            ["model.lookahead.latency.max_ngram_size=1"],
            "--set: model.lookahead.latency: found (W, N, G) = (5, 1, 3); N = 1",
        ),
        (
            ["tensorrt_llm.parameters.num_nodes=[1, 2]"],
            "--set: tensorrt_llm.parameters.num_nodes: found [1, 2]; should be true or false, a number or a text.",
        ),
        (
            ["tensorrt_llm.build_flags.max_lora_rank={a: 1}"],
            "build_flags.max_lora_rank: found {'a': 1}; should be true or false, a whole number or a text.",
        ),
        (
            ["model.checkpoint={source: random, config: {vocab_size: null}}"],
            "model.checkpoint.config.vocab_size: found None; should be a number, a text, true or false or a list",
        ),
        (["model.checkpoint={source: hub}"], "model.checkpoint.repo_id: is missing"),
        (["model=llama2-7b"], "--set: model: is no setting; name one with --model."),
        (["engine=8"], "--set: engine: found 8; should be keys and values."),
        (["model.checkpoint={path: x}"], "needs the key 'source'"),
        (["model.checkpoint={source: hup, repo_id: a/b}"], "found source 'hup'"),
        (["model.checkpoint.sha256=abc"], "model.checkpoint.sha256: found 'abc'"),
        (["engine.max_batch_size=true"], "should be a valid integer"),
        (["engine.max_batch_size=0"], "should be greater than or equal to 1"),
        (["name=fast"], "name: found 'fast'"),
        (["drafting.sources.9.top_k=1"], "does not exist"),
        (["model.checkpoint.version=9.9"], "found the number 9.9; should be a text. Put it in quotes."),
        (["server.startup_timeout_s=5"], None),
    ],
)
def test_combinations(overrides: list[str], expected: str | None) -> None:
    if expected is None:
        resolve_config("smollm2-135m", "latency", overrides, where=SHIPPED, hardware=CPU)
    else:
        assert expected in faults_of(*overrides)


def test_settings_that_do_not_go_together_are_found_in_the_file_that_was_laid_over(tmp_path: Path) -> None:
    lookahead = "{max_window_size: 7, max_ngram_size: 3, max_verification_set_size: 7}"
    write(tmp_path / "family.yaml", f"architecture: LlamaForCausalLM\nlookahead:\n  default: {lookahead}\n")
    own = write(
        tmp_path / "mine.yaml",
        "base: family.yaml\nnum_parameters: 20\nmax_position_embeddings: 8192\n"
        "checkpoint: {source: local, path: weights}\nlookahead:\n  default:\n    max_ngram_size: 1\n",
    )
    with pytest.raises(ConfigError, match=r"mine\.yaml:7: model\.lookahead\.default: found \(W, N, G\) = \(7, 1, 7\)"):
        resolve_config(str(own), "latency", where=SHIPPED, hardware=CPU)


def test_a_conflict_is_not_reported_on_top_of_the_fault_that_causes_it() -> None:
    assert "faults" not in faults_of("engine.max_draft_tokens=many")


def test_the_torch_engines_sizes_are_not_asked_of_tensorrt_llm() -> None:
    overrides = ("engine.max_batch_size=256", "engine.max_num_tokens=8192", "engine.prefill_chunk=9000")
    with pytest.raises(ConfigError, match="3 faults"):
        resolve_config("llama2-13b", "latency", ("backend=torch", "device=cpu", *overrides), where=SHIPPED)
    assert resolve_config(
        "llama2-13b", "latency", ("backend=tensorrt_llm", "tensorrt_llm.speculation=none", *overrides), where=SHIPPED
    )


def test_a_fault_of_the_backend_alone_is_reported_once() -> None:
    overrides = ["backend=tensorrt_llm", "drafting.strategy=hybrid"]
    with pytest.raises(ConfigError) as caught:
        resolve_config("llama2-13b", "latency", overrides, where=SHIPPED)
    assert [key for key, _ in caught.value.faults] == ["drafting.strategy"]
    assert "a TensorRT-LLM engine has one speculative mode" in str(caught.value)


def test_faults_of_the_backend_come_with_those_of_the_files() -> None:
    overrides = [
        "backend=tensorrt_llm",
        "tensorrt_llm.speculation=trie",
        "tensorrt_llm.kv_cache_dtype=int8",
        "tensorrt_llm.tokens_per_block=20",
        "engine.prefillchunk=3",
    ]
    with pytest.raises(ConfigError) as caught:
        resolve_config("llama2-13b", "latency", overrides, where=SHIPPED)
    text = str(caught.value)
    assert text.startswith("3 faults in the configuration:")
    assert "--set: tensorrt_llm.speculation: found 'trie', which needs paged context attention" in text
    assert [key for key, _ in caught.value.faults] == [
        "engine.prefillchunk",
        "tensorrt_llm.tokens_per_block",
        "tensorrt_llm.speculation",
    ]


@pytest.mark.parametrize(
    ("overrides", "helps"),
    [
        (["engine.max_seq_len=99999"], "engine.max_seq_len=8192"),
        (["engine.prefill_chunk=8192"], "engine.prefill_chunk=4096"),
        (["engine.max_draft_tokens=14", "drafting.max_draft_tokens=14"], "engine.max_draft_tokens=15"),
        (["model.parallelism.pipeline=2"], "model.parallelism.pipeline=1"),
    ],
)
def test_a_refusal_names_an_override_that_was_checked_to_help(overrides: list[str], helps: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_config("smollm2-135m", "latency", overrides, where=SHIPPED, hardware=CPU)
    assert f"Checked: --set {helps} helps." in str(caught.value)
    assert resolve_config("smollm2-135m", "latency", (*overrides, helps), where=SHIPPED, hardware=CPU)


def test_an_override_that_does_not_help_is_not_named() -> None:
    overrides = ["backend=tensorrt_llm", "tensorrt_llm.gpu_memory_gib=1"]
    with pytest.raises(ConfigError, match="GiB per GPU with one sequence") as caught:
        resolve_config("llama2-13b", "latency", overrides, where=SHIPPED)
    assert "Checked" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"Checked: --set tensorrt_llm\.quantization=fp8 helps"):
        resolve_config(
            "llama2-13b", "latency", ["backend=tensorrt_llm", "tensorrt_llm.gpu_memory_gib=24"], where=SHIPPED
        )


def test_a_window_that_no_sequence_holds_gets_no_hint_about_the_size_of_a_pass() -> None:
    found = faults_of("model.lookahead.latency.max_ngram_size=1000000000")
    assert "N = 1000000000, G = 3 needs 7999999991 draft tokens" in found
    assert "engine.max_num_tokens" not in found
