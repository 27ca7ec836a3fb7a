"""Plugins of trtllm-build whose number format must be that of the model."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.backends.tensorrt_llm.case import Case
from pipeline.backends.tensorrt_llm.rules.problem import Rule, build_flag
from pipeline.config.faults import Fault, fault

_FP8_ONLY = ("gemm_swiglu_plugin", "low_latency_gemm_plugin", "low_latency_gemm_swiglu_plugin")


def plugins_have_the_models_type(case: Case) -> Iterator[Fault]:
    """Attention computes in the model's dtype; another one is taken by the builder and fails or loses precision."""
    attention, gemm = (case.trt.build_flags.get(name) for name in ("gpt_attention_plugin", "gemm_plugin"))
    if attention not in (None, "auto", "disable", case.resolved.dtype):
        yield fault(
            build_flag("gpt_attention_plugin"),
            f"found {attention!r}; the model's dtype is {case.resolved.dtype}.",
            "Remove it, or change model.gpu_dtype.",
        )
    if gemm not in (None, "auto", "disable", "fp8", "nvfp4", case.resolved.dtype):
        yield fault(
            build_flag("gemm_plugin"),
            f"found {gemm!r}; the model's dtype is {case.resolved.dtype}.",
            "Remove it, or change model.gpu_dtype.",
        )


def low_precision_plugins_have_their_weights(case: Case) -> Iterator[Fault]:
    """FP8 and FP4 matrix products need weights of that format."""
    for name in ("gemm_plugin", *_FP8_ONLY):
        value = case.trt.build_flags.get(name)
        if value in ("fp8", "nvfp4") and value != case.trt.quantization:
            yield fault(
                build_flag(name),
                f"found {value!r} with tensorrt_llm.quantization = '{case.trt.quantization}'; this plugin multiplies "
                f"{str(value).upper()} weights.",
                f"Remove it, or set tensorrt_llm.quantization to '{value}'.",
            )


RULES: tuple[Rule, ...] = (
    plugins_have_the_models_type,
    low_precision_plugins_have_their_weights,
)
