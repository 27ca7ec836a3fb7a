"""From an artefact on disk to a torch engine in memory, and to a scheduler that serves it."""

from __future__ import annotations

from collections.abc import Collection

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from pipeline.decoding.create import BLS_KINDS, ENGINE_KINDS, create_drafter
from pipeline.decoding.planner import AdaptivePlanner, FixedPlanner, Planner
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.warm_up import warm_up
from pipeline.engine.artifact import Artifact
from pipeline.engine.contract import EngineLimits
from pipeline.engine.cost_curve import load_cost_curve
from pipeline.engine.scheduler import Scheduler
from pipeline.engine.torch.engine import TorchEngine
from pipeline.errors import BuildError


def load_engine(artifact: Artifact) -> TorchEngine:
    """Load the weights and claim the KV cache. Raises BuildError if the artefact asks for a device that is not here."""
    resolved = artifact.resolved
    if resolved.device == "cuda" and not torch.cuda.is_available():
        raise BuildError(
            f"the engine in {artifact.folder} was built for CUDA and no CUDA device is available here; "
            "build it again with --set device=cpu"
        )
    warm_up()
    transformers_logging.disable_progress_bar()  # a bar of its own in the middle of ours, for a second's work
    model = AutoModelForCausalLM.from_pretrained(
        artifact.engine_dir, dtype=getattr(torch, resolved.dtype), local_files_only=True
    ).to(resolved.device)
    sizes = resolved.profile.engine
    limits = EngineLimits(
        max_batch_size=sizes.max_batch_size,
        max_seq_len=sizes.max_seq_len,
        max_num_tokens=sizes.max_num_tokens,
        max_draft_tokens=sizes.max_draft_tokens,
        vocab_size=model.config.get_text_config().vocab_size,
    )
    return TorchEngine(model, limits)


def create_scheduler(
    artifact: Artifact, kinds: Collection[str] = BLS_KINDS | ENGINE_KINDS, engine: TorchEngine | None = None
) -> Scheduler:
    """A scheduler over the given or a freshly loaded engine. kinds: draft sources that live with it; a server passes
    `ENGINE_KINDS`, as the others live in its BLS model."""
    engine = load_engine(artifact) if engine is None else engine
    profile = artifact.resolved.profile
    drafting = profile.drafting
    return Scheduler(
        engine,
        create_drafter(drafting.sources, artifact.resolved.lookahead, engine.limits.vocab_size, kinds),
        _create_planner(artifact),
        default_budget=DraftBudget(drafting.max_draft_tokens, drafting.max_draft_len),
        max_queue_size=profile.scheduling.max_queue_size,
        prefill_chunk=profile.engine.prefill_chunk,
    )


def _create_planner(artifact: Artifact) -> Planner:
    if artifact.resolved.profile.drafting.planner == "fixed":
        return FixedPlanner()
    curve = load_cost_curve(artifact.folder, artifact.manifest.fingerprint_digest)
    if curve is None:
        raise BuildError(
            f"drafting.planner is adaptive and the engine in {artifact.folder} has no cost curve of this build; "
            f"measure one with `lookahead bench --cost-curve --model {artifact.manifest.model} "
            f"--profile {artifact.manifest.profile}`, or use --set drafting.planner=fixed"
        )
    return AdaptivePlanner(curve)
