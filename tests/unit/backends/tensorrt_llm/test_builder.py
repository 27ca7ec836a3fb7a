"""What the builder makes of a plan's command line is what the plan expects."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.backends.tensorrt_llm.plan import EngineStage, Plan, plan_for
from pipeline.backends.tensorrt_llm.readback import engine_differences
from pipeline.config.folders import folders
from pipeline.config.loading import names_in
from pipeline.config.schema import ResolvedConfig
from pipeline.errors import ConfigError
from tests.trt_configs import SPECULATIONS, trt_config
from tests.unit.backends.tensorrt_llm.builder import built_config

SWITCHES = (
    *("context_fmha", "multiple_profiles", "norm_quant_fusion", "paged_state", "pp_reduce_scatter", "reduce_fusion"),
    *("streamingllm", "use_fp8_context_fmha", "use_fused_mlp", "use_paged_context_fmha", "user_buffer"),
    "bert_context_fmha_fp32_acc",
)
# Values of options that the builder changes, or refuses, with some settings.
FLAGS = st.fixed_dictionaries(
    {},
    optional={
        **{name: st.sampled_from(["enable", "disable"]) for name in SWITCHES},
        "gather_all_token_logits": st.booleans(),
        "gemm_plugin": st.sampled_from(["auto", "float16", "bfloat16", "fp8", "nvfp4", "disable"]),
        "gemm_swiglu_plugin": st.sampled_from(["fp8", "disable"]),
        "low_latency_gemm_plugin": st.sampled_from(["fp8", "disable"]),
        "low_latency_gemm_swiglu_plugin": st.sampled_from(["fp8", "disable"]),
        "fp8_rowwise_gemm_plugin": st.sampled_from(["auto", "float16", "disable"]),
        "nccl_plugin": st.sampled_from(["auto", "float16", "bfloat16", "disable"]),
        "max_input_len": st.integers(1, 5000),
        "opt_num_tokens": st.integers(1, 5000),
        "fast_build": st.booleans(),
    },
)
SIZES = st.fixed_dictionaries(
    {},
    optional={
        "engine.max_batch_size": st.integers(1, 64),
        "engine.max_seq_len": st.integers(16, 400),
        "engine.max_num_tokens": st.integers(1, 9000),
        "tensorrt_llm.tokens_per_block": st.sampled_from([16, 32, 64, 128]),
        "tensorrt_llm.max_external_draft_len": st.integers(1, 256),
        "tensorrt_llm.enable_chunked_context": st.booleans(),
    },
)
MODELS = st.fixed_dictionaries(
    {},
    optional={
        "model.parallelism.tensor": st.sampled_from([1, 2, 4]),
        "model.parallelism.pipeline": st.sampled_from([1, 2]),
        "model.gpu_dtype": st.sampled_from(["float16", "bfloat16", "float32"]),
        "model.architecture": st.sampled_from(["LlamaForCausalLM", "Qwen2ForCausalLM", "MixtralForCausalLM"]),
        "tensorrt_llm.quantization": st.sampled_from(["none", "fp8", "int8_wo", "int4_awq", "nvfp4"]),
        "tensorrt_llm.kv_cache_dtype": st.sampled_from(["auto", "fp8", "int8"]),
        "tensorrt_llm.compute_capability": st.sampled_from([80, 89, 90, 100, 120]),
        "tensorrt_llm.gpu_memory_gib": st.just(2000),
        "tensorrt_llm.allow_unvalidated": st.just(True),
    },
)
LOOKAHEAD = st.tuples(st.integers(1, 12), st.integers(2, 12), st.integers(0, 12))
SPECULATION = st.sampled_from(SPECULATIONS)


def differences(found: Plan, stage: EngineStage, config: ResolvedConfig) -> list[str]:
    """What the plan expects and the builder does not make."""
    architecture = config.model.architecture
    checkpoint = {**found.conversion.expected, "architecture": architecture, "logits_dtype": "float32"}
    built = built_config(stage.argv, checkpoint, config.profile.tensorrt_llm.compute_capability)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(built))
        for rank in range(found.world_size):
            (folder / f"rank{rank}.engine").touch()
        return engine_differences(folder, stage.expected, found.world_size)


def overrides_of(settings: dict[str, Any], sizes: tuple[int, int, int], profile: str) -> list[str]:
    names = ("max_window_size", "max_ngram_size", "max_verification_set_size")
    lookahead = [f"model.lookahead.{profile}.{name}={size}" for name, size in zip(names, sizes, strict=True)]
    return lookahead + [f"{name}={value}" for name, value in settings.items()]


def plan_of(
    profile: str, speculation: str, lookahead: tuple[int, int, int], **asked: Any
) -> tuple[Plan, ResolvedConfig]:
    config = trt_config("llama2-13b", profile, f".speculation={speculation}", *overrides_of(asked, lookahead, profile))
    return plan_for(config), config


@settings(max_examples=100, deadline=None)
@given(profile=st.sampled_from(names_in(folders().profiles)), sizes=SIZES, lookahead=LOOKAHEAD, speculation=SPECULATION)
def test_the_builder_makes_an_engine_of_the_planned_sizes(profile, sizes, lookahead, speculation):
    try:
        found, config = plan_of(profile, speculation, lookahead, **sizes)
    except ConfigError:
        return
    for stage in found.engines:
        assert differences(found, stage, config) == []


@settings(max_examples=250, deadline=None)
@given(sizes=SIZES, model=MODELS, flags=FLAGS, speculation=SPECULATION)
def test_the_builder_keeps_all_options_that_a_plan_has(sizes, model, flags, speculation):
    named = {f"tensorrt_llm.build_flags.{name}": value for name, value in flags.items()}
    try:
        found, config = plan_of("latency", speculation, (2, 2, 1), **sizes, **model, **named)
    except ConfigError:
        return
    for stage in found.engines:
        assert differences(found, stage, config) == []
