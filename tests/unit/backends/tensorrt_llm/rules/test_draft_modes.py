"""What lookahead and drafts from outside refuse."""

from __future__ import annotations

import json

import pytest

from pipeline.backends.tensorrt_llm.rules import faults_of
from pipeline.backends.tensorrt_llm.rules.draft_modes import RULES
from tests.trt_configs import trt_context
from tests.unit.backends.tensorrt_llm.rules.refusals import Wrong, assert_refused, idle

WRONG: list[Wrong] = [
    (
        "model.lookahead.latency.max_window_size=1 model.lookahead.latency.max_ngram_size=1 "
        "model.lookahead.latency.max_verification_set_size=0",
        "model.lookahead.latency",
        "makes no drafts",
    ),
    (
        "model.lookahead.latency.max_window_size=1 model.lookahead.latency.max_ngram_size=2 "
        "model.lookahead.latency.max_verification_set_size=0",
        "model.lookahead.latency",
        "makes no drafts",
    ),
    ("model.architecture=BloomForCausalLM", "tensorrt_llm.speculation", "ALiBi"),
    ("model.shape.position_embedding=alibi", "tensorrt_llm.speculation", "ALiBi"),
    # 40 heads: the converter takes it for Baichuan-13B, whatever is stated
    ("model.architecture=BaichuanForCausalLM", "tensorrt_llm.speculation", "ALiBi"),
    (
        "model.architecture=BaichuanForCausalLM model.shape.position_embedding=rope",
        "tensorrt_llm.speculation",
        "ALiBi",
    ),
    (
        "model.architecture=FalconForCausalLM",
        "model.shape.position_embedding",
        "is missing; some models of FalconForCausalLM have ALiBi positions",
    ),
    (
        "model.architecture=FalconForCausalLM model.shape.position_embedding=alibi .speculation=both",
        "tensorrt_llm.speculation",
        "ALiBi",
    ),
    ("model.gpu_dtype=float32", "model.gpu_dtype", "float16 and bfloat16"),
    ("model.architecture=GPT2LMHeadModel", "tensorrt_llm.speculation", "lack of a kernel"),
    ("model.shape.head_size=100", "tensorrt_llm.speculation", "multiples of 16"),
    ("model.shape.head_size=288", "tensorrt_llm.speculation", "up to 256"),
    ("model.shape.num_key_value_heads=1", "tensorrt_llm.speculation", "40 query heads"),
    ("model.shape.sliding_window=2048", "tensorrt_llm.speculation", "sliding attention window of 2048"),
    ("model.architecture=Gemma2ForCausalLM", "tensorrt_llm.speculation", "sliding attention window"),
    ("model.architecture=MambaForCausalLM .speculation=trie", "tensorrt_llm.speculation", "recurrent"),
    (
        "model.architecture=RecurrentGemmaForCausalLM .speculation=none .enable_chunked_context=true",
        "tensorrt_llm.enable_chunked_context",
        "recurrent",
    ),
    (
        "model.architecture=RecurrentGemmaForCausalLM .speculation=none .enable_kv_cache_reuse=true",
        "tensorrt_llm.enable_kv_cache_reuse",
        "recurrent",
    ),
    ("model.architecture=MedusaForCausalLM", "model.architecture", "own speculative mode"),
    (".context_parallel=2", "tensorrt_llm.context_parallel", "context parallelism"),
    ("model.parallelism.pipeline=2", "model.parallelism.pipeline", "allow_unvalidated"),
    (".quantization=int4_awq", "tensorrt_llm.quantization", "16-bit and FP8"),
    (".compute_capability=100", "tensorrt_llm.compute_capability", "after Hopper"),
    (".speculation=trie .kv_cache_dtype=int8", "tensorrt_llm.speculation", "kv_cache_dtype = 'int8'"),
    (".speculation=trie .kv_cache_dtype=fp8", "tensorrt_llm.speculation", "fp8, w4a8_awq or nvfp4"),
    (
        ".speculation=trie model.gpu_dtype=float32",
        "tensorrt_llm.speculation",
        "found 'trie', which needs paged context attention, but model.gpu_dtype = 'float32' leaves attention unfused; "
        "the fused kernels take float16 and bfloat16. Change that, or use 'none'.",
    ),
    (
        ".speculation=none model.gpu_dtype=float32 .enable_chunked_context=true",
        "tensorrt_llm.enable_chunked_context",
        "'float32'",
    ),
    (
        ".speculation=none model.gpu_dtype=float32 .enable_kv_cache_reuse=true",
        "tensorrt_llm.enable_kv_cache_reuse",
        "'float32'",
    ),
    (
        ".speculation=none model.gpu_dtype=float32 .build_flags.use_paged_context_fmha=enable",
        "tensorrt_llm.build_flags.use_paged_context_fmha",
        "'float32'",
    ),
    (".speculation=trie .build_flags.use_paged_context_fmha=disable", "tensorrt_llm.speculation", "'disable'"),
    (".speculation=trie .build_flags.context_fmha=disable", "tensorrt_llm.speculation", "context_fmha"),
    (".speculation=trie .enable_kv_cache_reuse=false", "tensorrt_llm.enable_kv_cache_reuse", "does not load"),
    (".kv_cache_dtype=int8 .enable_chunked_context=true", "tensorrt_llm.enable_chunked_context", "int8"),
    (".kv_cache_dtype=int8 .enable_kv_cache_reuse=true", "tensorrt_llm.enable_kv_cache_reuse", "int8"),
    (
        ".kv_cache_dtype=int8 .build_flags.use_paged_context_fmha=enable",
        "tensorrt_llm.build_flags.use_paged_context_fmha",
        "Change one",
    ),
    (
        ".build_flags.use_fp8_context_fmha=enable .quantization=fp8",
        "tensorrt_llm.build_flags.use_fp8_context_fmha",
        "kv_cache_dtype is 'auto'",
    ),
    (
        ".build_flags.use_fp8_context_fmha=enable .kv_cache_dtype=fp8",
        "tensorrt_llm.build_flags.use_fp8_context_fmha",
        "tensorrt_llm.quantization is 'none'",
    ),
    (
        ".build_flags.use_fp8_context_fmha=enable .quantization=fp8 .build_flags.context_fmha=disable",
        "tensorrt_llm.build_flags.use_fp8_context_fmha",
        "context_fmha = 'disable'",
    ),
    (
        ".build_flags.use_fp8_context_fmha=enable .quantization=fp8 model.gpu_dtype=float32 .speculation=none",
        "tensorrt_llm.build_flags.use_fp8_context_fmha",
        "'float32'",
    ),
    (
        ".build_flags.use_fp8_context_fmha=disable .kv_cache_dtype=fp8 .quantization=fp8",
        "tensorrt_llm.build_flags.use_fp8_context_fmha",
        "switch it on",
    ),
    (".speculation=none drafting.strategy=lookahead", "drafting.strategy", "builds no engine"),
]


@pytest.mark.parametrize(("overrides", "key", "text"), WRONG, ids=[wrong[0][:60] for wrong in WRONG])
def test_a_wrong_combination_is_refused_with_key_value_and_remedy(overrides, key, text):
    assert_refused(RULES, overrides, key, text)


def test_every_rule_refuses_something():
    assert idle(RULES, WRONG) == []


@pytest.mark.parametrize(("stated", "refused"), [({"alibi": False}, False), ({"alibi": True}, True), ({}, True)])
def test_a_local_falcon_says_its_positions_in_config_json(stated, refused, tmp_path):
    sizes = {"hidden_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 32, "vocab_size": 65024}
    config = {**sizes, "architectures": ["FalconForCausalLM"], "max_position_embeddings": 4096, **stated}
    (tmp_path / "config.json").write_text(json.dumps(config))
    overrides = (
        "model.lookahead={default: {max_window_size: 4, max_ngram_size: 3, max_verification_set_size: 4}}",
        "model.gpu_dtype=float16",
    )
    problems = faults_of(trt_context(*overrides, model=str(tmp_path)))
    assert bool(problems) == refused
    assert all("ALiBi" in problem.text for problem in problems)
