"""A served engine: its Triton model, and the settings that must match its build."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.backends.tensorrt_llm.build_context import BuildContext, build_context_of
from pipeline.backends.tensorrt_llm.resource_estimate import kv_share, kv_tokens_of
from pipeline.config.schema import LookaheadConfig
from pipeline.engine.artifact import Artifact
from pipeline.engine.traits import Mode, RuntimeLimits
from pipeline.repository.names import LOOKAHEAD_MODEL, TARGET_MODEL


@dataclass(frozen=True, slots=True)
class Instance:
    """A served engine. lookahead: W, N and G, from which limits.max_draft_len was computed; None for other modes.
    kv_fraction: share for the KV cache of the GPU memory that is free when the model loads. Of two models, the second
    loads after the first. kv_tokens: limit of the KV cache if two engines share a GPU. participant_ids: MPI ranks;
    None if the backend does not need them."""

    triton_model: str
    mode: Mode
    lookahead: LookaheadConfig | None
    limits: RuntimeLimits
    kv_cache_reuse: bool
    kv_fraction: float
    kv_tokens: int | None
    participant_ids: str | None


def instances_of(context: BuildContext) -> list[Instance]:
    """The engines of a config, that of the model `tensorrt_llm` first."""
    return [
        Instance(
            triton_model=TARGET_MODEL if index == 0 else LOOKAHEAD_MODEL,
            mode=mode,
            lookahead=context.resolved.lookahead if mode == "lookahead" else None,
            limits=context.limits(mode),
            kv_cache_reuse=context.kv_cache_reuse(mode),
            kv_fraction=round(context.trt.kv_cache_free_gpu_mem_fraction * kv_share(context, mode), 4),
            kv_tokens=None if len(context.modes) == 1 or context.shape is None else kv_tokens_of(context, mode),
            participant_ids=context.participant_ids(index),
        )
        for index, mode in enumerate(context.modes)
    ]


def engine_dir(root: Path, instance: Instance, num_engines: int) -> Path:
    """Folder of an instance's engine. root: the artifact's engine/, which has a subfolder per engine if there are
    two."""
    return root if num_engines == 1 else root / instance.triton_model


def engine_dirs(artifact: Artifact) -> list[Path]:
    """Folders of the engines of an artifact, in the order of `instances_of`."""
    instances = instances_of(build_context_of(artifact.resolved))
    return [engine_dir(artifact.engine_dir, instance, len(instances)) for instance in instances]
