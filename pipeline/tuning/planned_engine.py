"""ResolvedConfig -> an engine that its draft planner can plan for: built, and its passes measured on this machine."""

from __future__ import annotations

from pipeline.config.places import Places
from pipeline.config.schema import ResolvedConfig
from pipeline.engine.artifact import Artifact
from pipeline.engine.backend import Note, backend_of
from pipeline.engine.build import BuildResult, build_engine
from pipeline.engine.cost_curve import load_cost_curve, save_cost_curve
from pipeline.tuning.cost_curve import grid_for, measure


def planned_engine(
    resolved: ResolvedConfig, places: Places, *, force: bool = False, note: Note = lambda text: None
) -> BuildResult:
    """`build_engine`, and the cost curve beside the artefact if the profile's planner needs one that is not there.
    Raises CheckpointError and BuildError."""
    result = build_engine(resolved, places, force=force, note=note)
    if needs_cost_curve(result.artifact):
        note("measuring what passes cost, for the draft planner")
        measure_cost_curve(result.artifact)
    return result


def needs_cost_curve(artifact: Artifact) -> bool:
    """Whether the planner is adaptive, the engine runs in process, and nothing was measured with this build in as many
    processes."""
    resolved = artifact.resolved
    if not backend_of(resolved.backend).in_process or resolved.profile.drafting.planner != "adaptive":
        return False
    return load_cost_curve(artifact) is None


def measure_cost_curve(artifact: Artifact) -> None:
    """Measure a coarse curve and store it; `lookahead bench --cost-curve` puts a finer one in its place."""
    from pipeline.engine.parallel import ParallelEngine

    engine = backend_of(artifact.resolved.backend).load_engine(artifact)
    try:
        points = measure(engine, grid_for(artifact.resolved.device, fine=False))
    finally:
        if isinstance(engine, ParallelEngine):
            engine.close()  # the caller's own engine needs the line between the processes
    save_cost_curve(artifact, tuple(points))
