"""Checks of `tensorrt_llm.build_flags`, further options of trtllm-build."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.backends.tensorrt_llm import release_data
from pipeline.backends.tensorrt_llm.build_context import BuildContext, FlagValue
from pipeline.backends.tensorrt_llm.rules.problem import Rule, build_flag, not_settable, wrong
from pipeline.config.faults import Fault, one_of


def known_flags(context: BuildContext) -> Iterator[Fault]:
    """Names and types. trtllm-build checks this too, but only after the download and the conversion."""
    release = release_data.release()
    for name, value in context.trt.build_flags.items():
        if name not in release.settable_flags:
            yield not_settable(build_flag(name), name, value, release.settable_flags, release.flags_set_elsewhere)
        elif right := _right_value(release.build_flags[name], value):
            yield wrong(build_flag(name), value, f"should be {right}")


def _right_value(flag: release_data.Flag, value: FlagValue) -> str | None:
    """Description of valid values; None if the value is valid."""
    if flag.type == "store_true":
        return None if isinstance(value, bool) else "true or false"
    if not flag.choices:
        return None if isinstance(value, str) else "a text"
    if isinstance(value, bool):
        return f"{one_of(flag.choices)} in quotes"
    return None if value in flag.choices else one_of(flag.choices)


def plugins_have_what_they_need(context: BuildContext) -> Iterator[Fault]:
    """Options that the builder silently changes, or refuses after the conversion, and types with which the engine fails
    or loses precision."""
    dtype, weights, flags = context.resolved.dtype, context.trt.quantization, context.trt.build_flags
    for name, value in flags.items():
        if value in ("fp8", "nvfp4") and value != weights:
            reason = f"it multiplies {str(value).upper()} weights, and tensorrt_llm.quantization is '{weights}'"
            remedy = f"Remove it, or set tensorrt_llm.quantization to '{value}'."
            yield wrong(build_flag(name), value, reason, remedy)
        elif name.endswith("_plugin") and value not in (dtype, weights, "auto", "disable"):
            reason = f"the model's dtype is {dtype}"
            yield wrong(build_flag(name), value, reason, "Remove it, or change model.gpu_dtype.")
        elif value == "fp8" and context.trt.compute_capability == 100:
            yield wrong(build_flag(name), value, "the builder refuses it for compute capability 100", "Remove it.")
    for name, reason in _lost_flags(context):
        if (value := flags.get(name, "disable")) != "disable":
            yield wrong(build_flag(name), value, reason, "Remove it.")


def _lost_flags(context: BuildContext) -> Iterator[tuple[str, str]]:
    """Options that have no effect with these settings, with the reason."""
    architecture, weights = context.model.architecture, context.trt.quantization
    fuses = context.model.parallelism.tensor > 1 and architecture in ("LlamaForCausalLM", "Gemma2ForCausalLM")
    if not fuses:
        reason = "it is for LlamaForCausalLM and Gemma2ForCausalLM with model.parallelism.tensor above 1"
        yield "reduce_fusion", reason
    is_fused_llama = fuses and architecture == "LlamaForCausalLM" and context.flag("reduce_fusion") == "enable"
    if not is_fused_llama or weights != "fp8":
        yield (
            "user_buffer",
            "it is made for LlamaForCausalLM with tensorrt_llm.quantization = 'fp8' and "
            f"{build_flag('reduce_fusion')} = 'enable'",
        )
    if weights == "nvfp4" and context.flag("gemm_plugin") != "nvfp4":
        yield "gemm_plugin", "with tensorrt_llm.quantization = 'nvfp4' the builder replaces it with 'nvfp4'"
    if context.flag("weight_streaming"):
        yield "gemm_plugin", f"weights of plugins stay on the GPU despite {build_flag('weight_streaming')}"


RULES: tuple[Rule, ...] = (known_flags, plugins_have_what_they_need)
