"""Checks of GPU generation, container and memory, and of sizes that the builder would change silently."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.backends.tensorrt_llm import release_data
from pipeline.backends.tensorrt_llm.build_context import BuildContext
from pipeline.backends.tensorrt_llm.resource_estimate import gpu_need, kv_share, kv_tokens_of
from pipeline.backends.tensorrt_llm.rules.faults import wrong
from pipeline.config.faults import Fault

_GIB = 1 << 30
# Shortest useful length of prompt and output.
_LEAST_SEQ_LEN = 16
_KEY = "tensorrt_llm.compute_capability"
# First compute capability of each format, and formats for older GPUs.
_FIRST_GPU = {"fp8": 89, "w4a8_awq": 89, "nvfp4": 100}
_OTHERS = {89: "Use 'int8_wo', 'int4_awq' or 'none'.", 100: "Use 'fp8' or 'int4_awq'."}
# Formats that the builder refuses for compute capabilities 100 .. 119.
_INTEGER_FORMATS = ("int8_wo", "int4_wo", "int4_awq", "w4a8_awq")
# Settings that reduce the memory per GPU, the smallest change first.
_SMALLER = (
    "tensorrt_llm.quantization=fp8",
    *(f"model.parallelism.tensor={ranks}" for ranks in (2, 4, 8)),
    "tensorrt_llm.speculation=trie",
)


def gpu_has_the_formats(context: BuildContext) -> Iterator[Fault]:
    """Formats of weights and KV cache: FP8 from Ada (89) on, FP4 from Blackwell (100) on, integer formats up to Hopper.
    The converter or the builder checks this too, but only after the download."""
    gpu, weights, cache = context.trt.compute_capability, context.trt.quantization, context.trt.kv_cache_dtype
    known = release_data.release().compute_capabilities
    if gpu not in known:
        reason = f"TensorRT-LLM {release_data.RELEASE_LINE} supports {', '.join(map(str, known))}"
        yield wrong(_KEY, gpu, reason, "Set it to the target GPU's, or use backend: torch.")
    if gpu < (first := _FIRST_GPU.get(weights, 0)):
        kind = "FP4" if first == 100 else "FP8"
        reason = f"{kind} needs compute capability {first} or newer, and {_KEY} is {gpu}"
        yield wrong("tensorrt_llm.quantization", weights, reason, _OTHERS[first])
    if cache == "fp8" and gpu < 89:
        reason = f"it needs compute capability 89 or newer, and {_KEY} is {gpu}"
        yield wrong("tensorrt_llm.kv_cache_dtype", cache, reason, "Use 'auto'.")
    if 100 <= gpu < 120:
        reason = f"the builder refuses it for {_KEY} = {gpu}"
        if weights in _INTEGER_FORMATS:
            yield wrong("tensorrt_llm.quantization", weights, reason, "Use 'fp8' or 'nvfp4'.")
        if cache == "int8":
            yield wrong("tensorrt_llm.kv_cache_dtype", cache, reason, "Use 'auto' or 'fp8'.")


def container_is_known(context: BuildContext) -> Iterator[Fault]:
    """The container has the supported release line, because options and files differ between release lines."""
    tag, known = context.trt.container_tag, list(release_data.release().containers)
    if tag not in known:
        reason = f"it is no known container with TensorRT-LLM {release_data.RELEASE_LINE}"
        yield wrong("tensorrt_llm.container_tag", tag, reason, f"Use '{known[-1]}'.")


def engines_fit_into_the_gpu(context: BuildContext) -> Iterator[Fault]:
    """Weights, activations and the KV cache of one full-length sequence fit into the GPU's memory, by an estimate."""
    if context.shape is None:
        return
    need, have = gpu_need(context).minimum_bytes, context.trt.gpu_memory_gib
    if need > have * _GIB:
        yield wrong(
            "tensorrt_llm.gpu_memory_gib",
            float(have),
            f"{len(context.modes)} engine(s) of {context.model.name} need about {need / _GIB:.1f} GiB per GPU with one "
            "sequence",
            "Raise model.parallelism.tensor, quantize, lower engine.max_seq_len, or state a larger GPU.",
            *_SMALLER,
        )


def caches_hold_a_sequence(context: BuildContext) -> Iterator[Fault]:
    """The KV cache of an engine holds at least one sequence of full length."""
    if context.shape is None or any(engines_fit_into_the_gpu(context)):
        return
    longest, limit = context.engine.max_seq_len, context.parameter("max_tokens_in_paged_kv_cache")
    if isinstance(limit, int) and limit < longest:
        reason = f"a KV cache must hold one sequence of engine.max_seq_len = {longest} tokens"
        yield wrong("tensorrt_llm.parameters.max_tokens_in_paged_kv_cache", limit, reason, "Raise it, or leave it out.")
    for mode in context.modes:
        held = kv_tokens_of(context, mode)
        if held >= longest:
            continue
        name = "kv_cache_free_gpu_mem_fraction" if len(context.modes) == 1 else "lookahead_kv_share"
        share = context.trt.kv_cache_free_gpu_mem_fraction * kv_share(context, mode)
        yield wrong(
            f"tensorrt_llm.{name}",
            float(getattr(context.trt, name)),
            f"the '{mode}' engine's KV cache gets {share:.3g} of the remaining memory, about {held} tokens, and one "
            f"sequence has up to engine.max_seq_len = {longest}",
            "Raise it, lower engine.max_seq_len, or set a larger tensorrt_llm.gpu_memory_gib.",
        )


def sizes_are_those_of_the_built_engine(context: BuildContext) -> Iterator[Fault]:
    """engine.max_seq_len, which includes the drafts, leaves room for requests. engine.max_num_tokens holds at least a
    KV cache block, and a full batch with all drafts; the builder would silently raise a lower value."""
    engine, batch = context.engine, context.engine.max_batch_size
    for mode in context.modes:
        drafts, name = context.max_draft_len(mode), context.resolved.profile.name
        key = "tensorrt_llm.max_external_draft_len" if mode == "trie" else f"model.lookahead.{name}"
        if (left := context.asked_seq_len(mode)) < _LEAST_SEQ_LEN:
            reason = f"the '{mode}' engine reserves {drafts} draft tokens, which leaves {left} for prompt and output"
            yield wrong("engine.max_seq_len", engine.max_seq_len, reason, f"Raise it, or draft less ({key}).")
        if (built := context.max_num_tokens(mode)) <= engine.max_num_tokens:
            continue
        reason, others = "tensorrt_llm.tokens_per_block", "tensorrt_llm.tokens_per_block"
        fixes = [f"engine.max_num_tokens={built}"]
        if built > context.limited_num_tokens(mode):
            reason = f"engine.max_batch_size {batch} x ({drafts} drafts + 1)"
            others = f"engine.max_batch_size or {key}"
            fixes.append(f"engine.max_batch_size={max(1, engine.max_num_tokens // (drafts + 1))}")
        yield wrong(
            "engine.max_num_tokens",
            engine.max_num_tokens,
            f"the builder would silently raise it to {built} = {reason} for the '{mode}' engine",
            f"Raise it yourself, or lower {others}.",
            *fixes,
        )


def external_prefix_fits_into_a_pass(context: BuildContext) -> Iterator[Fault]:
    """A pass holds a whole sequence, because each step with external drafts sends prompt, output and drafts as one
    prompt."""
    engine = context.engine
    is_chunked = context.trt.enable_chunked_context
    if "trie" in context.modes and not is_chunked and engine.max_num_tokens < engine.max_seq_len:
        yield wrong(
            "engine.max_num_tokens",
            engine.max_num_tokens,
            f"with tensorrt_llm.speculation = '{context.trt.speculation}' each step sends prompt, output and drafts "
            f"again, up to engine.max_seq_len = {engine.max_seq_len} tokens in one pass",
            "Raise it to that, or set tensorrt_llm.enable_chunked_context to true.",
            f"engine.max_num_tokens={engine.max_seq_len}",
            "tensorrt_llm.enable_chunked_context=true",
        )
