"""GPU generation, container and memory."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.backends.tensorrt_llm import facts
from pipeline.backends.tensorrt_llm.case import Case
from pipeline.backends.tensorrt_llm.estimate import gpu_need, kv_share, kv_tokens_of
from pipeline.backends.tensorrt_llm.rules.problem import Rule, parameter
from pipeline.config.faults import Fault, fault

_GIB = 1 << 30
_KEY = "tensorrt_llm.compute_capability"
# Settings that make an engine smaller per GPU, the mildest first.
_SMALLER = (
    ("tensorrt_llm.quantization", "fp8"),
    ("model.parallelism.tensor", 2),
    ("model.parallelism.tensor", 4),
    ("model.parallelism.tensor", 8),
    ("tensorrt_llm.speculation", "trie"),
)


def gpu_is_supported(case: Case) -> Iterator[Fault]:
    known = facts.compute_capabilities()
    if case.trt.compute_capability not in known:
        yield fault(
            _KEY,
            f"found {case.trt.compute_capability}; TensorRT-LLM {facts.RELEASE_LINE} supports "
            f"{', '.join(map(str, known))}.",
            "Set it to the target GPU's, or use backend: torch.",
        )


def gpu_has_the_number_formats(case: Case) -> Iterator[Fault]:
    """FP8 from Ada (89) on, FP4 from Blackwell (100) on."""
    trt, gpu = case.trt, case.trt.compute_capability
    if trt.quantization in ("fp8", "w4a8_awq") and gpu < 89:
        yield fault(
            "tensorrt_llm.quantization",
            f"found '{trt.quantization}'; FP8 needs compute capability 89 or newer, and {_KEY} is {gpu}.",
            "Use 'int8_wo', 'int4_awq' or 'none'.",
        )
    if trt.quantization == "nvfp4" and gpu < 100:
        yield fault(
            "tensorrt_llm.quantization",
            f"found 'nvfp4'; FP4 needs compute capability 100 or newer, and {_KEY} is {gpu}.",
            "Use 'fp8' or 'int4_awq'.",
        )
    if trt.kv_cache_dtype == "fp8" and gpu < 89:
        yield fault(
            "tensorrt_llm.kv_cache_dtype",
            f"found 'fp8'; an FP8 KV cache needs compute capability 89 or newer, and {_KEY} is {gpu}.",
            "Use 'auto'.",
        )


def blackwell_has_no_integer_formats(case: Case) -> Iterator[Fault]:
    """From 100 to below 120 the builder refuses INT8 and INT4 weights, AWQ among them, and INT8 KV caches."""
    trt, gpu = case.trt, case.trt.compute_capability
    if not 100 <= gpu < 120:
        return
    if trt.quantization in ("int8_wo", "int4_wo", "int4_awq", "w4a8_awq"):
        yield fault(
            "tensorrt_llm.quantization",
            f"found '{trt.quantization}'; the builder refuses it for {_KEY} = {gpu}.",
            "Use 'fp8' or 'nvfp4'.",
        )
    if trt.kv_cache_dtype == "int8":
        yield fault(
            "tensorrt_llm.kv_cache_dtype",
            f"found 'int8'; the builder refuses it for {_KEY} = {gpu}.",
            "Use 'auto' or 'fp8'.",
        )


def container_is_known(case: Case) -> Iterator[Fault]:
    """Options and files differ between release lines; ours are those of one."""
    key, tag = "tensorrt_llm.container_tag", case.trt.container_tag
    newest = list(facts.containers())[-1]
    found = facts.containers().get(tag)
    if found is None or not found.engine_backend:
        yield fault(key, f"found '{tag}'; no container of that tag is known to build engines.", f"Use '{newest}'.")
    elif found.trtllm is None or found.release is None:
        yield fault(key, f"found '{tag}'; which TensorRT-LLM it holds is not confirmed.", f"Use '{newest}'.")
    elif found.release < facts.FIRST_WITH_LOOKAHEAD_PARAMETERS and "lookahead" in case.modes:
        yield fault(
            key,
            f"found '{tag}' with TensorRT-LLM {found.trtllm}; its Triton backend has no lookahead parameters before "
            "0.19.",
            f"Use '{newest}'.",
        )
    elif found.release != facts.release_of(facts.RELEASE_LINE + ".0"):
        yield fault(
            key,
            f"found '{tag}' with TensorRT-LLM {found.trtllm}; this pipeline writes for release line "
            f"{facts.RELEASE_LINE}.",
            f"Use '{newest}'.",
        )


def engines_fit_into_the_gpu(case: Case) -> Iterator[Fault]:
    """Weights, activations and the KV cache of one sequence of full length, by estimate."""
    if case.shape is None:
        return
    need, have = gpu_need(case, case.shape), case.trt.gpu_memory_gib * _GIB
    if need.minimum_bytes > have:
        yield fault(
            "tensorrt_llm.gpu_memory_gib",
            f"found {case.trt.gpu_memory_gib:g}; {len(case.modes)} engine(s) of {case.model.name} need about "
            f"{need.minimum_bytes / _GIB:.1f} GiB per GPU with one sequence.",
            "Raise model.parallelism.tensor, quantise, lower engine.max_seq_len, or state a larger GPU.",
            fixes=tuple(f"{key}={value}" for key, value in _SMALLER),
        )


def caches_hold_a_sequence(case: Case) -> Iterator[Fault]:
    """An engine can never serve a sequence that is longer than its KV cache."""
    if case.shape is None or any(engines_fit_into_the_gpu(case)):
        return
    longest = case.engine.max_seq_len
    limit = case.parameter("max_tokens_in_paged_kv_cache")
    if isinstance(limit, int) and limit < longest:
        yield fault(
            parameter("max_tokens_in_paged_kv_cache"),
            f"found {limit}; a KV cache must hold one sequence of engine.max_seq_len = {longest} tokens.",
            "Raise it, or leave it out.",
        )
    for mode in case.modes:
        held = kv_tokens_of(case, case.shape, mode)
        if held >= longest:
            continue
        fraction, share = case.trt.kv_cache_free_gpu_mem_fraction, kv_share(case, mode)
        key, found = "tensorrt_llm.kv_cache_free_gpu_mem_fraction", f"{fraction:g}"
        if len(case.modes) > 1:
            key, found = "tensorrt_llm.lookahead_kv_share", f"{case.trt.lookahead_kv_share:g}"
        yield fault(
            key,
            f"found {found}; the '{mode}' engine's KV cache gets {fraction * share:.3g} of the memory that is left, "
            f"about {held} tokens, and one sequence has up to engine.max_seq_len = {longest}.",
            "Give it more, lower engine.max_seq_len, or state a larger tensorrt_llm.gpu_memory_gib.",
        )


RULES: tuple[Rule, ...] = (
    gpu_is_supported,
    gpu_has_the_number_formats,
    blackwell_has_no_integer_formats,
    container_is_known,
    engines_fit_into_the_gpu,
    caches_hold_a_sequence,
)
