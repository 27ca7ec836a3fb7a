"""Loads the engine of an artifact. For the lean pass it imports neither torch nor transformers."""

from __future__ import annotations

from pipeline.checkpoint.architectures import WITHOUT_WINDOWS
from pipeline.config.threads import num_threads
from pipeline.decoding.warm_up import warm_up
from pipeline.engine.artifact import Artifact
from pipeline.engine.contract import EngineLimits
from pipeline.engine.torch.lean.plan import read_plan
from pipeline.engine.torch.slots import SlotEngine
from pipeline.errors import BuildError


def load_engine(artifact: Artifact) -> SlotEngine:
    """Load the weights and allocate the KV cache. Raises BuildError if the device is missing."""
    if artifact.resolved.device == "cuda":
        _require_cuda(artifact)
    warm_up()
    threads = num_threads(artifact.resolved.profile.server.replicas)
    plan = read_plan(artifact.engine_dir)
    if plan is None:
        from pipeline.engine.torch.load_transformers import load_transformers

        return load_transformers(artifact, threads)
    if artifact.resolved.model.architecture in WITHOUT_WINDOWS:  # earlier builds copied windows that models ignore
        plan = plan.model_copy(update={"windows": (0,) * plan.num_layers})
    from pipeline.engine.torch.lean.engine import LeanEngine

    return LeanEngine(artifact.engine_dir, plan, limits_of(artifact, plan.vocab_size), threads)


def _require_cuda(artifact: Artifact) -> None:
    import torch

    if not torch.cuda.is_available():
        raise BuildError(
            f"the engine in {artifact.folder} was built for CUDA and no CUDA device is available here; "
            "build it again with --set device=cpu"
        )


def limits_of(artifact: Artifact, vocab_size: int) -> EngineLimits:
    """Engine limits from the artifact's settings."""
    sizes = artifact.resolved.profile.engine
    return EngineLimits(
        max_batch_size=sizes.max_batch_size,
        max_seq_len=sizes.max_seq_len,
        max_num_tokens=sizes.max_num_tokens,
        max_draft_tokens=sizes.max_draft_tokens,
        vocab_size=vocab_size,
    )
