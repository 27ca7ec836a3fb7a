"""Checks of further options and plugins of trtllm-build."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.backends.tensorrt_llm import release_data
from pipeline.backends.tensorrt_llm.build_context import BuildContext
from pipeline.backends.tensorrt_llm.rules.faults import faults_of_options, wrong
from pipeline.config.faults import Fault

_DTYPES = ("float16", "bfloat16", "float32", "int32")
_FUSED_MLP_PLUGINS = ("gemm_swiglu_plugin", "low_latency_gemm_swiglu_plugin")
# Options that trtllm-build refuses for compute capability 100.
_NOT_ON_100 = (
    *_FUSED_MLP_PLUGINS,
    *("low_latency_gemm_plugin", "fp8_rowwise_gemm_plugin", "bert_context_fmha_fp32_acc"),
)


def known_flags(context: BuildContext) -> Iterator[Fault]:
    """Names and types of the options, and options that another setting controls. trtllm-build checks this too, but only
    after the download and the conversion."""
    release = release_data.release()
    unknown = f"is not an option of trtllm-build {release_data.RELEASE_LINE}."
    elsewhere, no_use = release.flags_set_elsewhere, release.flags_of_no_use
    return faults_of_options("build_flags", context.trt.build_flags, release.build_flags, elsewhere, no_use, unknown)


def needed_for_serving(context: BuildContext) -> Iterator[Fault]:
    """Options that in-flight batching with one beam requires. The builder makes an engine without them, but the backend
    does not load it."""
    needed = [("gpt_attention_plugin", "auto"), ("remove_input_padding", "enable")]
    if "recurrent" in context.traits:
        needed += [("mamba_conv1d_plugin", "auto"), ("paged_state", "enable")]
    for name, right in needed:
        if context.flag(name) == "disable":
            reason = f"engines are served with in-flight batching, which needs {right!r}"
            yield wrong(f"tensorrt_llm.build_flags.{name}", "disable", reason, "Remove it.")
    if (found := context.flag("max_beam_width")) != 1:
        yield wrong("tensorrt_llm.build_flags.max_beam_width", found, "requests are served with one beam", "Remove it.")


def plugins_have_what_they_need(context: BuildContext) -> Iterator[Fault]:
    """Requirements of the plugins. The builder accepts a type other than the model's, which then fails or loses
    precision. It does not check the user buffer, and checks the LoRA modules only after the conversion."""
    dtype, weights = context.resolved.dtype, context.trt.quantization
    for name, value in context.trt.build_flags.items():
        if value in ("fp8", "nvfp4") and value != weights:
            reason = f"it multiplies {str(value).upper()} weights, and tensorrt_llm.quantization is '{weights}'"
            remedy = f"Remove it, or set tensorrt_llm.quantization to '{value}'."
            yield wrong(f"tensorrt_llm.build_flags.{name}", value, reason, remedy)
        elif name.endswith("_plugin") and value in _DTYPES and value != dtype:
            reason = f"the model's dtype is {dtype}"
            yield wrong(f"tensorrt_llm.build_flags.{name}", value, reason, "Remove it, or change model.gpu_dtype.")
    for name in ("gather_context_logits", "gather_all_token_logits"):
        if context.flag(name) and any(context.max_draft_len(mode) for mode in context.modes):
            remedy = "Remove it, or set tensorrt_llm.speculation to 'none'."
            yield wrong(
                f"tensorrt_llm.build_flags.{name}", True, "an engine with drafts cannot gather context logits", remedy
            )
    lora = context.flag("lora_plugin")
    if lora != "disable" and not context.flag("lora_target_modules"):
        remedy = "Add tensorrt_llm.build_flags.lora_target_modules=attn_qkv, or remove it."
        yield wrong("tensorrt_llm.build_flags.lora_plugin", lora, "it has no target modules", remedy)
    is_llama = context.model.architecture == "LlamaForCausalLM"
    if context.enabled("user_buffer") and not (is_llama and context.enabled("reduce_fusion") and weights == "fp8"):
        yield wrong(
            "tensorrt_llm.build_flags.user_buffer",
            "enable",
            "it is made for LlamaForCausalLM with tensorrt_llm.quantization = 'fp8' and "
            "tensorrt_llm.build_flags.reduce_fusion = 'enable'",
            "Remove it, or set those.",
        )


def builder_keeps_them(context: BuildContext) -> Iterator[Fault]:
    """Options that the builder would change, which it only logs, or refuse after the conversion."""
    for name, reason in _lost_flags(context):
        value = context.trt.build_flags.get(name, "disable")
        if value != "disable":
            yield wrong(f"tensorrt_llm.build_flags.{name}", value, reason, "Remove it.")
    tuned = context.trt.build_flags.get("opt_num_tokens")
    if not isinstance(tuned, int):
        return
    if context.enabled("multiple_profiles"):
        reason = "the builder takes it only without tensorrt_llm.build_flags.multiple_profiles = 'enable'"
        yield wrong("tensorrt_llm.build_flags.opt_num_tokens", tuned, reason, "Remove one of the two.")
    elif (most := min(map(context.limited_num_tokens, context.modes))) < tuned:
        reason = f"the builder would limit it to {most}, the most tokens of a pass"
        yield wrong("tensorrt_llm.build_flags.opt_num_tokens", tuned, reason, "Lower it, or remove it.")


def _lost_flags(context: BuildContext) -> Iterator[tuple[str, str]]:
    """Options that have no effect with these settings, or stop the builder, with the reason."""
    architecture, weights = context.model.architecture, context.trt.quantization
    if context.model.parallelism.tensor == 1 or architecture not in ("LlamaForCausalLM", "Gemma2ForCausalLM"):
        reason = "it is for LlamaForCausalLM and Gemma2ForCausalLM with model.parallelism.tensor above 1"
        yield "reduce_fusion", reason
    if architecture != "LlamaForCausalLM" or weights != "nvfp4" or context.enabled("reduce_fusion"):
        reason = "it is for LlamaForCausalLM with tensorrt_llm.quantization = 'nvfp4' and without reduce_fusion"
        yield "norm_quant_fusion", reason
    if "recurrent" not in context.traits:
        yield "paged_state", f"{context.model.architecture} keeps no recurrent state"
    if architecture != "MixtralForCausalLM":
        yield "pp_reduce_scatter", "it is for MixtralForCausalLM"
    if weights == "nvfp4" and context.flag("gemm_plugin") != "nvfp4":
        yield "gemm_plugin", "with tensorrt_llm.quantization = 'nvfp4' the builder replaces it with 'nvfp4'"
    if context.flag("weight_streaming"):
        yield "gemm_plugin", "weights of plugins stay on the GPU despite tensorrt_llm.build_flags.weight_streaming"
    if not context.enabled("use_fused_mlp"):
        yield from ((name, "it needs tensorrt_llm.build_flags.use_fused_mlp = 'enable'") for name in _FUSED_MLP_PLUGINS)
    if context.trt.compute_capability == 100:
        yield from ((name, "the builder refuses it for compute capability 100") for name in _NOT_ON_100)
