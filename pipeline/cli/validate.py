"""The command `validate-gpu`, which runs everything once on this machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pipeline.cli import options as shared
from pipeline.cli import output
from pipeline.config.folders import folders
from pipeline.errors import UserError

if TYPE_CHECKING:
    from pipeline.bench.validation.validation import StageResult, ValidationPlan
    from pipeline.config.schema import Device


# Options that have an effect with --part engine.
_OF_ENGINE = {"part", "model", "backend", "shapes", "limit", "max_new_tokens", "out", "as_json"}


def validate_gpu(
    context: typer.Context,
    model: shared.Model = shared.DEFAULT_MODEL,
    profile: shared.Profile = shared.DEFAULT_PROFILE,
    other_profile: Annotated[str, typer.Option("--other-profile", help="Profile to switch to.")] = "throughput",
    overrides: shared.Set = None,
    backend: Annotated[
        str, typer.Option("--backend", help="Backend: tensorrt_llm, or torch, which also runs on a CPU.")
    ] = "tensorrt_llm",
    limit: Annotated[int, shared.limit_to("prompts of verify and bench")] = 6,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", min=1, help="Output tokens of verify and bench.")
    ] = 64,
    part: Annotated[
        Literal["server", "engine"],
        typer.Option("--part", help="server: all stages. engine: the torch engine alone, without a server."),
    ] = "server",
    shapes: Annotated[
        str | None,
        typer.Option(
            "--shapes", help="Shapes for --part engine: tiny, llama2-7b, llama2-13b, qwen2.5-7b, separated by commas."
        ),
    ] = None,
    load_seconds: Annotated[
        float,
        typer.Option("--load-seconds", min=0.1, max=1e6, help="Duration of the load by eight clients, in seconds."),
    ] = 5.0,
    stage_timeout: Annotated[
        float, typer.Option("--stage-timeout", min=1, max=1e6, help="Time limit of a stage, in seconds.")
    ] = 7200.0,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="New folder for engines, logs and the report; default: validation-<time>."),
    ] = None,
    as_json: shared.Json = False,
) -> None:
    """Build a small model; serve, verify, bench, load and switch it; write a report to attach to an issue.

    If a stage fails, the report has its log, and the stages that do not depend on it still run. Exit code 1 if a stage
    failed.
    """
    from pipeline.bench.contenders.in_process import choose_strategies
    from pipeline.bench.validation.validation import ValidationPlan, has_passed
    from pipeline.bench.validation.validation_report import report_of, write_report
    from pipeline.config.registry import backend_names
    from pipeline.engine.backend import backend_of
    from pipeline.triton_models.routing import offered_strategies

    if part == "engine":
        shared.refuse_given(context, shared.given(context).keys() - _OF_ENGINE, "with --part engine")
        _check_engine(model, shapes, limit, max_new_tokens, out, as_json)
        return
    shared.refuse_given(context, {"shapes"}, "without --part engine")
    if backend not in backend_names():
        raise UserError(f"There is no backend {backend!r}; --backend takes {' or '.join(backend_names())}.")
    of_gpu, first_only = backend_of(backend).validation_settings()
    settings = (*of_gpu, *(overrides or ()))
    resolved = shared.resolve(model, profile, (f"backend={backend}", *first_only, *settings))
    shared.resolve(model, other_profile, (f"backend={backend}", *settings))
    offered = offered_strategies(backend_of(backend).traits(resolved))
    folder = _new_folder(out)
    plan = ValidationPlan(
        model=model,
        profile=profile,
        other_profile=other_profile,
        backend=backend,
        overrides=settings,
        first_only=first_only,
        strategies=tuple(name for name in choose_strategies(resolved.profile, None) if name in offered),
        num_prompts=limit,
        max_new_tokens=max_new_tokens,
        load_seconds=load_seconds,
        stage_timeout_s=stage_timeout,
    )
    results = _run(plan, folder)
    report = report_of(plan, results)
    markdown, data = write_report(folder, report)
    if as_json:
        output.print_json(report)
    else:
        rows = [(result.name, result.outcome, f"{result.seconds:.1f}", result.reason) for result in results]
        output.table(["stage", "outcome", "seconds", ""], rows)
        output.say(f"report: {markdown} (attach it with {data.name})")
    if not has_passed(results):
        raise typer.Exit(1)


def _check_engine(
    model: str, shapes: str | None, limit: int, max_new_tokens: int, out: Path | None, as_json: bool
) -> None:
    """Check the torch engine on this machine's GPU, else its CPU. The report is updated after each check."""
    from dataclasses import asdict

    from pipeline.bench.validation.engine_checks import CheckOptions, run_checks
    from pipeline.bench.validation.shapes import LARGE_SHAPES, SHAPES
    from pipeline.bench.validation.validation import private_folders
    from pipeline.bench.validation.validation_report import write_engine_report
    from pipeline.config.hardware import detect_hardware

    device: Device = "cpu" if detect_hardware().gpu is None else "cuda"
    default = LARGE_SHAPES if device == "cuda" else ("tiny",)
    names = default if shapes is None else tuple(shared.words("--shapes", shapes, SHAPES))
    options = CheckOptions(device, model, names, limit, max_new_tokens)
    shared.resolve(model, shared.DEFAULT_PROFILE, ("backend=torch", f"device={device}"))
    folder = _new_folder(out)
    folder.mkdir(parents=True, exist_ok=True)
    own, _ = private_folders(folders(), folder)

    def on_result(done: list[dict[str, Any]]) -> None:
        write_engine_report(folder, asdict(options), done)

    with output.working("checking the engine") as note:
        results = run_checks(options, own, note, on_result)
    if as_json:
        output.print_json({"checks": results})
    else:
        rows = [(check["name"], "passed" if check["passed"] else "FAILED", check["seconds"]) for check in results]
        output.table(["check", "result", "seconds"], rows)
        output.say(f"report: {folder / 'engine.md'}")
    if not all(check["passed"] for check in results):
        raise typer.Exit(1)


def _new_folder(out: Path | None) -> Path:
    folder = (out or Path(f"validation-{time.strftime('%Y%m%d-%H%M%S')}")).resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is a file or is not empty; name a new folder with --out.")
    return folder


def _run(plan: ValidationPlan, folder: Path) -> list[StageResult]:
    """Run all stages. Engines and server are created in the folder. The report is updated after each stage."""
    from pipeline.bench.validation.validation import private_folders, run_stages, stages_of
    from pipeline.bench.validation.validation_report import report_of, write_report
    from pipeline.server.run_folders import run_dir
    from pipeline.server.state import find_server

    own, environment = private_folders(folders(), folder)

    def server_address() -> str | None:
        state = find_server(run_dir(own))
        return None if state is None else state.grpc_url

    def on_result(done: list[StageResult]) -> None:
        write_report(folder, report_of(plan, done))

    stages, timeout_s = stages_of(plan, folder), plan.stage_timeout_s
    return run_stages(stages, folder, environment, server_address, timeout_s, output.note, on_result)
