"""Loads the engine of an artifact. For the lean pass it imports neither torch nor transformers."""

from __future__ import annotations

from pipeline.config.threads import num_threads
from pipeline.decoding.warm_up import warm_up
from pipeline.engine.artifact import Artifact
from pipeline.engine.contract import EngineLimits
from pipeline.engine.parallel import ParallelEngine
from pipeline.engine.torch.lean.plan import WEIGHTS, read_plan
from pipeline.engine.torch.lean.weights import map_weights
from pipeline.engine.torch.slots import SlotEngine


def load_engine(artifact: Artifact) -> SlotEngine | ParallelEngine:
    """Load the weights and allocate the KV cache. With engine.lookahead_parallel or model.parallelism.tensor, start
    further processes, which end with this one. Raises BuildError if the KV cache does not fit into memory."""
    _, num_ranks = artifact.resolved.ranks
    if num_ranks == 1:
        return load_rank(artifact, 0, num_threads(artifact.resolved.profile.server.replicas))
    from pipeline.engine.torch.ranks import start_ranks

    return start_ranks(artifact)


def load_rank(artifact: Artifact, rank: int, num_threads: int) -> SlotEngine:
    """Load the engine of one process. rank: also the number of its CUDA device. num_threads: of a pass on the CPU. With
    tensor parallelism all ranks must load at the same time."""
    warm_up()
    plan = read_plan(artifact.engine_dir)
    if plan is None:
        from pipeline.engine.torch.load_transformers import load_transformers

        return load_transformers(artifact, rank, num_threads)
    from pipeline.engine.torch.lean.engine import LeanEngine

    tensors = map_weights(artifact.engine_dir / WEIGHTS)
    return LeanEngine(plan, tensors, limits_of(artifact, plan.vocab_size), num_threads)


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
