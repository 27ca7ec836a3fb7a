"""What the GPU and the container refuse."""

from __future__ import annotations

import pytest

from pipeline.backends.tensorrt_llm.rules.device import RULES
from tests.unit.backends.tensorrt_llm.rules.refusals import Wrong, assert_refused, idle

WRONG: list[Wrong] = [
    (".compute_capability=75 .speculation=none", "tensorrt_llm.compute_capability", "80, 86, 89"),
    (".compute_capability=80 .quantization=fp8", "tensorrt_llm.quantization", "89 or newer"),
    (".compute_capability=86 .quantization=w4a8_awq .speculation=none", "tensorrt_llm.quantization", "89"),
    (".quantization=nvfp4 .speculation=none", "tensorrt_llm.quantization", "100 or newer"),
    (".compute_capability=86 .kv_cache_dtype=fp8", "tensorrt_llm.kv_cache_dtype", "89 or newer"),
    (".compute_capability=100 .quantization=int8_wo .speculation=none", "tensorrt_llm.quantization", "nvfp4"),
    (".compute_capability=100 .quantization=int4_awq .speculation=trie", "tensorrt_llm.quantization", "nvfp4"),
    (".compute_capability=103 .quantization=w4a8_awq .speculation=none", "tensorrt_llm.quantization", "refuses it"),
    (".compute_capability=103 .kv_cache_dtype=int8 .speculation=none", "tensorrt_llm.kv_cache_dtype", "103"),
    (
        ".container_tag='25.01'",
        "tensorrt_llm.container_tag",
        "it holds TensorRT-LLM 0.17.0, no lookahead parameters",
    ),
    (".container_tag='25.03'", "tensorrt_llm.container_tag", "not confirmed"),
    (".container_tag='25.12'", "tensorrt_llm.container_tag", "it holds TensorRT-LLM 1.1.0, not release line 1.2. Use"),
    (".container_tag='27.01'", "tensorrt_llm.container_tag", "'26.07'"),
    (".gpu_memory_gib=24", "tensorrt_llm.gpu_memory_gib", "GiB per GPU"),
    (".kv_cache_free_gpu_mem_fraction=0.01", "tensorrt_llm.kv_cache_free_gpu_mem_fraction", "about 704 tokens"),
    (".speculation=both .lookahead_kv_share=0.05", "tensorrt_llm.lookahead_kv_share", "the 'lookahead' engine"),
    (
        ".parameters.max_tokens_in_paged_kv_cache=10",
        "tensorrt_llm.parameters.max_tokens_in_paged_kv_cache",
        "engine.max_seq_len = 4096",
    ),
]


@pytest.mark.parametrize(("overrides", "key", "text"), WRONG, ids=[wrong[0][:60] for wrong in WRONG])
def test_a_wrong_combination_is_refused_with_key_value_and_remedy(overrides, key, text):
    assert_refused(RULES, overrides, key, text)


def test_every_rule_refuses_something():
    assert idle(RULES, WRONG) == []
