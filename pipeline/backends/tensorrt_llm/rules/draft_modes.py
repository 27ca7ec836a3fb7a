"""Checks of lookahead decoding and external drafts: models and settings that do not work with them."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.backends.tensorrt_llm import release_data
from pipeline.backends.tensorrt_llm.build_context import BuildContext
from pipeline.backends.tensorrt_llm.rules.faults import wrong
from pipeline.config.faults import Fault, fault

# Limits of the tree-attention kernels: query heads per key/value head, and head size.
_MAX_QUERIES_PER_KV = 32
_MAX_HEAD_SIZE = 256
_TESTED_QUANTIZATIONS = ("none", "fp8")
_OPT_IN = "Set tensorrt_llm.allow_unvalidated to true to try it."
_OTHER_MODES = ("tensorrt_llm.speculation=trie", "tensorrt_llm.speculation=none")


def lookahead_makes_drafts(context: BuildContext) -> Iterator[Fault]:
    """W, N and G give drafts. trtllm-build accepts a lookahead engine with max_draft_len 0 without a warning."""
    lookahead = context.resolved.lookahead
    if "lookahead" in context.modes and lookahead.max_draft_len == 0:
        yield fault(
            f"model.lookahead.{context.resolved.profile.name}",
            f"found (W, N, G) = {lookahead.sizes} (origin: {lookahead.origin}), which makes no drafts.",
            "Set values in the model config, at least (2, 2, 1), or tensorrt_llm.speculation to 'none'.",
        )


def lookahead_has_a_kernel(context: BuildContext) -> Iterator[Fault]:
    """There is an XQA kernel for the model. Without one, lookahead decoding fails at run time."""
    if "lookahead" not in context.modes:
        return
    for lack in _lacks_of_lookahead(context):
        reason = f"{context.model.name} ({context.model.architecture}) {lack}"
        yield wrong("tensorrt_llm.speculation", context.trt.speculation, reason, "Use 'trie' or 'none'.", *_OTHER_MODES)
    if context.resolved.dtype == "float32":
        reason = "lookahead decoding has kernels for float16 and bfloat16"
        yield wrong("model.gpu_dtype", "float32", reason, "Change it, or set tensorrt_llm.speculation to 'none'.")
    if context.positions is None and context.shape is not None:
        yield fault(
            "model.shape.position_embedding",
            f"is missing; some models of {context.model.architecture} have ALiBi positions, with which lookahead "
            "decoding does not work.",
            "State 'rope' or 'alibi', or set tensorrt_llm.speculation to 'trie' or 'none'.",
        )


def _lacks_of_lookahead(context: BuildContext) -> Iterator[str]:
    """Properties of the model that the tree-attention kernels do not support. They support rotary and learned absolute
    positions."""
    shape = context.shape
    if context.positions == "alibi":
        yield "has ALiBi positions, for which no tree-attention kernel exists"
    if "no_xqa_kernel" in context.traits:
        yield "is known to fail for lack of a kernel for lookahead decoding"
    if "uneven_layers" in context.traits:
        yield "has layers of different shapes, whose KV cache lookahead decoding cannot rewind"
    window = shape.sliding_window if shape is not None else None
    reaches = window is not None and window < context.engine.max_seq_len
    if reaches or ("sliding_window" in context.traits and window is None):
        width = f" of {window} tokens, below engine.max_seq_len" if window else ""
        yield f"has a sliding attention window{width}, which lookahead decoding does not support"
    if shape is None:
        return
    if (size := shape.head_size) % 16 or size > _MAX_HEAD_SIZE:
        yield f"has heads of size {size}; lookahead decoding has kernels for multiples of 16 up to {_MAX_HEAD_SIZE}"
    if (ratio := shape.num_attention_heads / shape.num_key_value_heads) > _MAX_QUERIES_PER_KV:
        yield (
            f"has {ratio:.0f} query heads per key/value head; lookahead decoding has kernels for at most "
            f"{_MAX_QUERIES_PER_KV}"
        )


def lookahead_where_it_is_tested(context: BuildContext) -> Iterator[Fault]:
    """NVIDIA's support matrix has tensor parallelism, FP16, BF16 and FP8. Context parallelism excludes tree
    attention."""
    if "lookahead" not in context.modes:
        return
    if (ranks := context.trt.context_parallel) > 1:
        yield wrong(
            "tensorrt_llm.context_parallel", ranks, "lookahead decoding excludes context parallelism", "Set it to 1."
        )
    if context.trt.allow_unvalidated:
        return
    if (ranks := context.model.parallelism.pipeline) > 1:
        reason = "lookahead decoding is documented with tensor parallelism only"
        yield wrong("model.parallelism.pipeline", ranks, reason, f"Set it to 1. {_OPT_IN}")
    if (quantization := context.trt.quantization) not in _TESTED_QUANTIZATIONS:
        remedy = f"Use 'none' or 'fp8', or tensorrt_llm.speculation = 'trie'. {_OPT_IN}"
        reason = "lookahead decoding is documented for 16-bit and FP8 weights"
        yield wrong("tensorrt_llm.quantization", quantization, reason, remedy)
    if (gpu := context.trt.compute_capability) >= release_data.UNTESTED_GPUS:
        yield wrong(
            "tensorrt_llm.compute_capability",
            gpu,
            "lookahead decoding is not tested on GPUs after Hopper (90)",
            f"Use tensorrt_llm.speculation = 'trie' or 'none'. {_OPT_IN}",
            "tensorrt_llm.speculation=trie",
            "tensorrt_llm.allow_unvalidated=true",
        )


def checkpoints_without_drafts(context: BuildContext) -> Iterator[Fault]:
    """Checkpoints that exclude drafts. A recurrent state cannot be rolled back, cut into chunks or reused."""
    name, asked = context.model.architecture, context.trt
    if "recurrent" not in context.traits:
        return
    state = f"{name} keeps a recurrent state"
    if context.modes != ("none",):
        reason = f"{state}, which rejected drafts would spoil"
        yield wrong(
            "tensorrt_llm.speculation", asked.speculation, reason, "Use 'none'.", "tensorrt_llm.speculation=none"
        )
    if asked.enable_chunked_context:
        yield wrong("tensorrt_llm.enable_chunked_context", True, f"{state}; the backend switches it off", "Remove it.")
    if asked.enable_kv_cache_reuse:
        yield wrong("tensorrt_llm.enable_kv_cache_reuse", True, f"{state}, not kept with the KV cache", "Remove it.")


def paged_context_where_needed(context: BuildContext) -> Iterator[Fault]:
    """External drafts, KV reuse and chunked context need paged context attention, which the builder can silently
    disable. The backend does not load an engine for external drafts without KV reuse."""
    drafts, reuse, reason = "trie" in context.modes, context.trt.enable_kv_cache_reuse, context.paged_context_off
    if drafts and reuse is False:
        why = f"with tensorrt_llm.speculation = '{context.trt.speculation}' the backend does not load without it"
        yield wrong("tensorrt_llm.enable_kv_cache_reuse", False, why, "Remove it, or set it to true.")
    if reason is None:
        return
    users = []
    if drafts:
        others = "'none'" if context.resolved.dtype == "float32" else "'lookahead' or 'none'"
        users.append(("speculation", f"'{context.trt.speculation}'", f"use {others}"))
    if context.trt.enable_chunked_context:
        users.append(("enable_chunked_context", "true", "set it to false"))
    if reuse:
        users.append(("enable_kv_cache_reuse", "true", "leave it unset"))
    for name, found, remedy in users:
        text = f"found {found}, which needs paged context attention, but {reason}."
        yield fault(f"tensorrt_llm.{name}", text, f"Change that, or {remedy}.")


def context_attention_is_as_asked(context: BuildContext) -> Iterator[Fault]:
    """Requested values of paged and FP8 context attention. The builder silently changes them, depending on weights, KV
    cache and each other."""
    flags = context.trt.build_flags
    for name, off in (
        ("use_paged_context_fmha", context.paged_context_off),
        ("use_fp8_context_fmha", context.fp8_context_off),
    ):
        if flags.get(name) == "enable" and off is not None:
            yield fault(f"tensorrt_llm.build_flags.{name}", f"found 'enable', but {off}.", "Change one of the two.")
    if flags.get("use_fp8_context_fmha") == "disable" and context.fp8_context_forced:
        reason = "the builder would switch it on, as weights and KV cache are FP8"
        remedy = "Remove it, or set tensorrt_llm.build_flags.use_paged_context_fmha to 'disable'."
        yield wrong("tensorrt_llm.build_flags.use_fp8_context_fmha", "disable", reason, remedy)


def default_strategy_has_its_engine(context: BuildContext) -> Iterator[Fault]:
    """The default strategy has an engine. An engine has one speculative mode: lookahead, or external drafts."""
    strategy = context.resolved.profile.drafting.strategy
    if strategy == "lookahead" and "lookahead" not in context.modes:
        reason = f"tensorrt_llm.speculation = '{context.trt.speculation}' builds no engine for it"
        yield wrong("drafting.strategy", strategy, reason, "Use 'auto', or set the latter to 'lookahead' or 'both'.")
    if strategy == "hybrid":
        remedy = "Use 'auto' with tensorrt_llm.speculation = 'both', which serves two engines, or backend: torch."
        yield wrong("drafting.strategy", strategy, "a TensorRT-LLM engine has one speculative mode", remedy)
