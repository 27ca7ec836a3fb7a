"""One served engine: the Triton model that holds it, and the settings that must agree with how it was built."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.backends.tensorrt_llm.case import Case
from pipeline.backends.tensorrt_llm.estimate import kv_share, kv_tokens_of
from pipeline.engine.chains import Mode, RuntimeLimits, Triple, triple_of
from pipeline.repository.names import LOOKAHEAD_MODEL, TARGET_MODEL


@dataclass(frozen=True, slots=True)
class Instance:
    """lookahead: W, N and G, equal to those that max_draft_len was computed from; None for other modes. decoding_mode:
    None where the backend takes it from the engine. kv_fraction: share of the GPU memory that is free when the
    model loads; of two, the second finds what the first has left. kv_tokens: limit of the KV cache where two engines
    share a GPU. participant_ids: MPI ranks, where the backend must be told them."""

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
    participant_ids: str | None


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
        kv_fraction=round(case.trt.kv_cache_free_gpu_mem_fraction * kv_share(case, mode), 4),
        kv_tokens=None if len(case.modes) == 1 or case.shape is None else kv_tokens_of(case, case.shape, mode),
        participant_ids=case.participant_ids(index),
    )


def engine_dir(root: Path, instance: Instance, num_engines: int) -> Path:
    """Folder of an instance's engine below an artefact's engine/: with two of them, each has its own."""
    return root if num_engines == 1 else root / instance.triton_model
