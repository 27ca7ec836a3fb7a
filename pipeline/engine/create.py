"""Creates the scheduler of a loaded engine."""

from __future__ import annotations

from collections.abc import Collection

from pipeline.config.schema import SuppliedDraftConfig
from pipeline.decoding.create import ALL_KINDS, create_drafter
from pipeline.decoding.grammar.compiler import Compiler
from pipeline.decoding.planner import AdaptivePlanner, FixedPlanner, Planner
from pipeline.decoding.sources.base import DraftBudget
from pipeline.engine.artifact import Artifact
from pipeline.engine.contract import Engine
from pipeline.engine.cost_curve import load_cost_curve
from pipeline.engine.first_rows import load_first_rows
from pipeline.engine.scheduler import Scheduler
from pipeline.engine.vocabulary import artifact_vocabulary
from pipeline.errors import BuildError

SUPPLIED = SuppliedDraftConfig()


def create_compiler(artifact: Artifact, engine: Engine) -> Compiler:
    """A compiler of guides for the engine's vocabulary, which it loads for the first guide."""
    return Compiler(lambda: artifact_vocabulary(artifact, engine.limits.vocab_size))


def create_scheduler(
    artifact: Artifact, engine: Engine, kinds: Collection[str] | None = None, compiler: Compiler | None = None
) -> Scheduler:
    """A scheduler over a loaded engine. kinds: draft sources in this process, None for all; in a server the others are
    in the BLS model. compiler: one that several schedulers share. Raises BuildError if an adaptive planner has no cost
    curve."""
    profile = artifact.resolved.profile
    drafting = profile.drafting
    wanted = ALL_KINDS if kinds is None else kinds
    sources = drafting.sources
    if kinds is not None and all(source.kind != SUPPLIED.kind for source in sources):
        # A served engine always verifies the drafts that a request brings.
        sources = (*sources, SUPPLIED)
    drafter = create_drafter(sources, artifact.resolved.lookahead, engine.limits.vocab_size, wanted)
    first_rows = load_first_rows(artifact)
    if first_rows is not None:
        drafter.begin_with(first_rows.rows)
    return Scheduler(
        engine,
        drafter,
        _create_planner(artifact),
        default_budget=DraftBudget(drafting.max_draft_tokens, drafting.max_draft_len),
        max_queue_size=profile.scheduling.max_queue_size,
        prefill_chunk=profile.engine.prefill_chunk,
        compiler=compiler or create_compiler(artifact, engine),
    )


def _create_planner(artifact: Artifact) -> Planner:
    if artifact.resolved.profile.drafting.planner == "fixed":
        return FixedPlanner()
    stored = load_cost_curve(artifact)
    if stored is None:
        raise BuildError(
            f"drafting.planner is adaptive and the engine in {artifact.folder} has no cost curve of this machine; "
            f"measure one with `lookahead bench --cost-curve --model {artifact.manifest.model} "
            f"--profile {artifact.manifest.profile}`, or use --set drafting.planner=fixed"
        )
    return AdaptivePlanner(stored.curve)
