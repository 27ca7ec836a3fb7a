"""Build options that do not go together."""

from __future__ import annotations

import pytest

from pipeline.backends.tensorrt_llm.rules import faults_of
from pipeline.backends.tensorrt_llm.rules.flags import RULES
from tests.trt_configs import trt_context
from tests.unit.backends.tensorrt_llm.rules.refusals import Wrong, assert_refused, idle

WRONG: list[Wrong] = [
    (".build_flags.gather_context_logits=true", "tensorrt_llm.build_flags.gather_context_logits", "cannot gather"),
    (
        ".build_flags.gather_all_token_logits=true .speculation=trie",
        "tensorrt_llm.build_flags.gather_all_token_logits",
        "'none'",
    ),
    (".build_flags.lora_plugin=auto", "tensorrt_llm.build_flags.lora_plugin", "without target modules"),
    (
        ".build_flags.user_buffer=enable",
        "tensorrt_llm.build_flags.user_buffer",
        "it is made for",
    ),
    (
        ".build_flags.user_buffer=enable .build_flags.reduce_fusion=enable model.parallelism.tensor=2",
        "tensorrt_llm.build_flags.user_buffer",
        "'fp8'",
    ),
    (".build_flags.max_beam_width=4", "tensorrt_llm.build_flags.max_beam_width", "one beam"),
    (".build_flags.max_beam_width=4 .speculation=none", "tensorrt_llm.build_flags.max_beam_width", "one beam"),
    (".build_flags.kv_cache_type=continuous", "tensorrt_llm.build_flags.kv_cache_type", "'paged'"),
    (".build_flags.kv_cache_type=disabled .speculation=none", "tensorrt_llm.build_flags.kv_cache_type", "'paged'"),
    (".build_flags.gpt_attention_plugin=disable", "tensorrt_llm.build_flags.gpt_attention_plugin", "'auto'"),
    (".build_flags.remove_input_padding=disable", "tensorrt_llm.build_flags.remove_input_padding", "'enable'"),
    # the backend's in-flight batching needs these whatever the speculation (supportsInflightBatching)
    (
        ".build_flags.gpt_attention_plugin=disable .speculation=none",
        "tensorrt_llm.build_flags.gpt_attention_plugin",
        "found 'disable'; engines are served with in-flight batching, which needs 'auto'. Remove it.",
    ),
    (
        ".build_flags.remove_input_padding=disable .speculation=none",
        "tensorrt_llm.build_flags.remove_input_padding",
        "found 'disable'; engines are served with in-flight batching, which needs 'enable'. Remove it.",
    ),
    (
        "model.architecture=MambaForCausalLM .build_flags.mamba_conv1d_plugin=disable .speculation=none",
        "tensorrt_llm.build_flags.mamba_conv1d_plugin",
        "in-flight batching",
    ),
    (
        "model.architecture=RecurrentGemmaForCausalLM .build_flags.paged_state=disable .speculation=none",
        "tensorrt_llm.build_flags.paged_state",
        "in-flight batching",
    ),
    (".build_flags.max_draft_len=83", "tensorrt_llm.build_flags.max_draft_len", "model.lookahead"),
    (
        ".build_flags.speculative_decoding_mode=medusa",
        "tensorrt_llm.build_flags.speculative_decoding_mode",
        "tensorrt_llm.speculation",
    ),
    (".build_flags.max_batch_size=2048", "tensorrt_llm.build_flags.max_batch_size", "engine.max_batch_size"),
    (".build_flags.build_config=file.json", "tensorrt_llm.build_flags.build_config", "discarded"),
    (".build_flags.paged_kv_cache=enable", "tensorrt_llm.build_flags.paged_kv_cache", "deprecated"),
    (".build_flags.strip_plan=true", "tensorrt_llm.build_flags.strip_plan", "no weights"),
    (".build_flags.gem_plugin=float16", "tensorrt_llm.build_flags.gem_plugin", "Did you mean 'gemm_plugin'"),
    (".build_flags.gemm_plugin=float8", "tensorrt_llm.build_flags.gemm_plugin", "'nvfp4'"),
    (".build_flags.max_lora_rank=many", "tensorrt_llm.build_flags.max_lora_rank", "whole number"),
    (".build_flags.fast_build=enable", "tensorrt_llm.build_flags.fast_build", "true or false"),
    (".build_flags.context_fmha=true", "tensorrt_llm.build_flags.context_fmha", "'enable' or 'disable'"),
    (".build_flags.gpt_attention_plugin=bfloat16", "tensorrt_llm.build_flags.gpt_attention_plugin", "dtype is float16"),
    (".build_flags.gemm_plugin=bfloat16", "tensorrt_llm.build_flags.gemm_plugin", "dtype is float16"),
    (".build_flags.gemm_plugin=fp8", "tensorrt_llm.build_flags.gemm_plugin", "FP8 weights"),
    (".build_flags.gemm_plugin=nvfp4 .quantization=fp8", "tensorrt_llm.build_flags.gemm_plugin", "NVFP4 weights"),
    (".build_flags.low_latency_gemm_plugin=fp8", "tensorrt_llm.build_flags.low_latency_gemm_plugin", "FP8 weights"),
]


@pytest.mark.parametrize(("overrides", "key", "text"), WRONG, ids=[wrong[0][:60] for wrong in WRONG])
def test_a_wrong_combination_is_refused_with_key_value_and_remedy(overrides, key, text):
    assert_refused(RULES, overrides, key, text)


def test_every_rule_refuses_something():
    assert idle(RULES, WRONG) == []


def test_lora_with_target_modules_is_taken():
    modules = (".build_flags.lora_plugin=auto", ".build_flags.lora_target_modules=attn_qkv")
    assert faults_of(trt_context(*modules)) == []
