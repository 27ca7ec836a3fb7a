"""The commands that build and remove engines: engine, clean."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli import output
from pipeline.cli.options import DEFAULT_MODEL, DEFAULT_PROFILE, DryRun, Json, Model, Profile, Set, Verbose, resolve
from pipeline.config.places import places

if TYPE_CHECKING:
    from pipeline.config.schema import ResolvedConfig


def register(app: typer.Typer) -> None:
    app.command()(engine)
    app.command()(clean)


def engine(
    model: Model = DEFAULT_MODEL,
    profile: Profile = DEFAULT_PROFILE,
    overrides: Set = None,
    force: Annotated[bool, typer.Option("--force", help="Build even if the engine exists.")] = False,
    dry_run: DryRun = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Fetch the checkpoint and build the engine. A finished engine is not built again."""
    resolved = resolve(model, profile, overrides)

    if dry_run:
        _show_plan(resolved, as_json, verbose)
        return

    from pipeline.tuning.planned_engine import planned_engine, stored_cost_curve

    start = time.monotonic()
    with output.working("building the engine") as note:
        result = planned_engine(resolved, places(), force=force, retake=True, note=note)
    artifact, seconds = result.artifact, time.monotonic() - start
    costs = stored_cost_curve(artifact)
    if as_json:
        output.print_json(
            {
                "outcome": result.outcome,
                "folder": str(artifact.folder),
                "fingerprint": artifact.manifest.fingerprint_digest,
                "num_bytes": artifact.manifest.num_bytes,
                "seconds": round(seconds, 3),
                "cost_curve": None if costs is None else {"busy": costs.is_disturbed, "others": costs.others},
            }
        )
        return
    size = artifact.manifest.num_bytes / 1e6
    output.say(
        f"{result.text}: {artifact.folder} ({size:.0f} MB, {resolved.dtype}, {resolved.device}) in {seconds:.1f} s"
    )
    if costs is not None:
        output.say(f"cost of passes: {costs.to_text()}")


def _show_plan(resolved: ResolvedConfig, as_json: bool, verbose: bool) -> None:
    """Print the plan; with `verbose` also the whole config. A plan with external commands is also written to a file."""
    from pipeline.config.resolution import dump_resolved
    from pipeline.engine.backend import backend_of
    from pipeline.engine.plan import engine_plan, write_plan

    where = places()
    plan = engine_plan(resolved, where)
    full = backend_of(resolved.backend).full_plan(resolved, where)
    text, calls = full if full is not None else ("", {})
    if calls:
        output.note(f"plan: {write_plan(calls, resolved, where)}")
    if as_json:
        extra = {resolved.backend: calls} if calls else {}
        output.print_json({"plan": {**plan, **extra}, "resolved": resolved.model_dump(mode="json")})
        return
    output.table(["plan", ""], plan.items())
    if text:
        output.say(text)
    if verbose:
        output.say(dump_resolved(resolved).rstrip())


def clean(
    model: Annotated[str | None, typer.Option("--model", "-m", help="Only this model's engines.")] = None,
    cache: Annotated[
        bool, typer.Option("--cache", help="Also remove downloads, converted checkpoints and compiled code.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Remove built engines."""
    from pipeline.engine.removal import removable, remove, require_unused, sizes_of
    from pipeline.server.startup import run_dir
    from pipeline.server.state import find_server

    where = places()
    targets = removable(where, model, cache)
    server = find_server(run_dir(where))
    require_unused(where, targets, None if server is None else Path(server.repository))
    for target, num_bytes in zip(targets, sizes_of(targets), strict=True):
        output.say(f"{'would remove' if dry_run else 'removing'} {target} ({num_bytes / 1e6:.0f} MB)")
    if not dry_run:
        remove(targets)
    if not targets:
        output.say("nothing to remove")
