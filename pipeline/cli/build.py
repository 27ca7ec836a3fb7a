"""The commands that build and remove engines and model repositories: engine, repo, clean."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli import output
from pipeline.cli.options import (
    DEFAULT_MODEL,
    DEFAULT_PROFILE,
    DryRun,
    Json,
    Model,
    Profile,
    Set,
    Verbose,
    require_engine_of_server,
    resolve,
    running_server,
)
from pipeline.config.folders import folders
from pipeline.errors import ConfigError, ServerError
from pipeline.llmapi import Method

if TYPE_CHECKING:
    from pipeline.config.schema import ResolvedConfig


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
    require_engine_of_server(resolved)

    from pipeline.tuning.planned_engine import planned_engine, stored_cost_curve

    start = time.monotonic()
    with output.working("building the engine") as note:
        result = planned_engine(resolved, folders(), force=force, retake=True, note=note)
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
    size = f"{artifact.manifest.num_bytes / 1e6:.0f} MB"
    output.say(
        f"{result.text}: {artifact.folder} ({size}, {resolved.weight_type}, {resolved.device}) in {seconds:.1f} s"
    )
    if costs is not None:
        output.say(f"cost of passes: {costs.to_text()}")


def _show_plan(resolved: ResolvedConfig, as_json: bool, verbose: bool) -> None:
    """Print the plan; with `verbose` also the whole config. A plan with external commands is also written to a file."""
    from pipeline.config.resolution import dump_resolved
    from pipeline.engine.backend import backend_of
    from pipeline.engine.plan import engine_plan, write_plan

    where = folders()
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


def repo(
    model: Model = DEFAULT_MODEL,
    profile: Profile = DEFAULT_PROFILE,
    overrides: Set = None,
    out: Annotated[Path | None, typer.Option("--out", help="Output folder; default: beside the engine.")] = None,
    llmapi: Annotated[
        Method | None,
        typer.Option(
            "--llmapi",
            help="Write a repository for TensorRT-LLM's LLM API, without an engine. Draft source: suffix_automaton, "
            "trie, ngram, none, or auto: suffix_automaton if the release has it, else trie.",
        ),
    ] = None,
    decoupled: Annotated[
        bool, typer.Option("--decoupled", help="With --llmapi: a model that can stream, and cannot serve `infer`.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the Triton model repository; build the engine first if needed."""
    from pipeline.engine.artifact import artifact_dir
    from pipeline.repository.names import REPOSITORY
    from pipeline.repository.render import check_repository, require_replaceable
    from pipeline.server.startup import prepare

    resolved = resolve(model, profile, overrides)
    target = None if out is None else out.resolve()
    if target is not None:
        require_replaceable(target)
    if llmapi is not None:
        folder, models = _write_llmapi(resolved, llmapi, target, decoupled)
    elif decoupled:
        raise ConfigError("--decoupled needs --llmapi. Other repositories have models with and without streaming.")
    else:
        _require_unserved(target or artifact_dir(folders(), resolved.model.name, resolved.profile.name) / REPOSITORY)
        require_engine_of_server(resolved)
        with output.working("building the engine and the repository") as note:
            folder = prepare(resolved, folders(), target, note).repository
        models = check_repository(folder)
    if as_json:
        output.print_json({"folder": str(folder), "models": list(models)})
    else:
        output.say(str(folder))


def _require_unserved(repository: Path) -> None:
    """Raise ServerError if a server runs from a repository: at a restart it would have other settings, perhaps without
    those that protect its clients."""
    running = running_server()
    if running is not None and Path(running.repository) == repository:
        raise ServerError(
            f"A server runs from {repository}. Stop it with `lookahead stop`, or name another folder: --out."
        )


def _write_llmapi(
    resolved: ResolvedConfig, method: Method, out: Path | None, decoupled: bool
) -> tuple[Path, tuple[str, ...]]:
    """Write a repository for the LLM API; return its folder and models."""
    from pipeline.llmapi.repository import MODEL, render_llmapi

    where = folders()
    target = out or where.engines / resolved.model.name / f"llmapi-{resolved.profile.name}"
    output.note("checked against the documented contract only; not run with TensorRT-LLM")
    return render_llmapi(resolved, method, target, where.home / "triton_repo", decoupled), (MODEL,)


def clean(
    model: Annotated[str | None, typer.Option("--model", "-m", help="Only this model's engines.")] = None,
    cache: Annotated[
        bool, typer.Option("--cache", help="Also remove downloaded packages, generated checkpoints and compiled code.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Remove built engines."""
    from pipeline.engine.removal import removable, remove, require_unused, sizes_of

    where = folders()
    targets = removable(where, model, cache)
    server = running_server()
    require_unused(where, targets, None if server is None else Path(server.repository))
    for target, num_bytes in zip(targets, sizes_of(targets), strict=True):
        output.say(f"{'would remove' if dry_run else 'removing'} {target} ({num_bytes / 1e6:.0f} MB)")
    if not dry_run:
        remove(targets)
    if not targets:
        output.say("nothing to remove")
