"""Plugins that the weights or ranks refuse."""

from __future__ import annotations

import pytest

from pipeline.backends.tensorrt_llm.rules.plugins import RULES
from tests.unit.backends.tensorrt_llm.rules.refusals import Wrong, assert_refused, idle

WRONG: list[Wrong] = [
    (".build_flags.gpt_attention_plugin=bfloat16", "tensorrt_llm.build_flags.gpt_attention_plugin", "dtype is float16"),
    (".build_flags.gemm_plugin=bfloat16", "tensorrt_llm.build_flags.gemm_plugin", "dtype is float16"),
    (".build_flags.gemm_plugin=fp8", "tensorrt_llm.build_flags.gemm_plugin", "FP8 weights"),
    (".build_flags.gemm_plugin=nvfp4 .quantization=fp8", "tensorrt_llm.build_flags.gemm_plugin", "NVFP4 weights"),
    (".build_flags.low_latency_gemm_plugin=fp8", "tensorrt_llm.build_flags.low_latency_gemm_plugin", "FP8 weights"),
]


@pytest.mark.parametrize(("overrides", "key", "text"), WRONG, ids=[case[0][:60] for case in WRONG])
def test_a_wrong_combination_is_refused_with_key_value_and_remedy(overrides, key, text):
    assert_refused(RULES, overrides, key, text)


def test_every_rule_refuses_something():
    assert idle(RULES, WRONG) == []
