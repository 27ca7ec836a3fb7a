"""One served engine: the Triton model that holds it, and the settings that must agree with how it was built."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.engine.tensorrt_llm.case import Case
from pipeline.engine.tensorrt_llm.estimate import kv_tokens
from pipeline.engine.tensorrt_llm.speculation import Mode, RuntimeLimits, Triple, triple_of

# The first engine of a config has TensorRT-LLM's own name, which stock clients and the ensemble call.
TARGET_MODEL = "tensorrt_llm"
LOOKAHEAD_MODEL = "tensorrt_llm_lookahead"


@dataclass(frozen=True, slots=True)
class Instance:
    """lookahead: W, N and G, equal to those that max_draft_len was computed from; None for other modes. decoding_mode:
    None where the backend takes it from the engine. kv_fraction: share of free GPU memory. kv_tokens: limit of the KV
    cache, where two engines share a GPU."""

    triton_model: str
    mode: Mode
    max_draft_len: int
    lookahead: Triple | None
    lookahead_origin: str | None
    decoding_mode: str | None
    limits: RuntimeLimits
    longest_prompt: int
    usable_seq_len: int
    kv_cache_reuse: bool
    kv_fraction: float
    kv_tokens: int | None


def instance_of(case: Case, index: int) -> Instance:
    """Settings of the engine number `index` of a config."""
    mode = case.modes[index]
    limits = case.limits(mode)
    is_lookahead = mode == "lookahead"
    return Instance(
        triton_model=TARGET_MODEL if index == 0 else LOOKAHEAD_MODEL,
        mode=mode,
        max_draft_len=case.max_draft_len(mode),
        lookahead=triple_of(case.resolved.lookahead) if is_lookahead else None,
        lookahead_origin=case.resolved.lookahead.origin if is_lookahead else None,
        decoding_mode={"lookahead": "lookahead", "none": "top_k_top_p", "trie": None}[mode],
        limits=limits,
        longest_prompt=limits.longest_prompt,
        usable_seq_len=limits.usable_seq_len,
        kv_cache_reuse=case.kv_cache_reuse(mode),
        kv_fraction=round(case.trt.kv_cache_free_gpu_mem_fraction * _share(case, mode), 4),
        kv_tokens=_kv_tokens(case, mode),
    )


def _share(case: Case, mode: Mode) -> float:
    if len(case.modes) == 1:
        return 1.0
    return case.trt.lookahead_kv_share if mode == "lookahead" else 1.0 - case.trt.lookahead_kv_share


def _kv_tokens(case: Case, mode: Mode) -> int | None:
    """The fraction counts what is free when a model loads, so the first of two engines would take more than its share:
    this limit holds in either order."""
    if len(case.modes) == 1 or case.shape is None:
        return None
    block = case.trt.tokens_per_block
    return max(block, int(kv_tokens(case, case.shape) * _share(case, mode)) // block * block)
