"""Verbs for a server's life: repo, serve, stop, status, switch."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from pipeline.cli import output
from pipeline.cli.options import DEFAULT_MODEL, DEFAULT_PROFILE, DryRun, Json, Model, Profile, Set, Verbose, resolve
from pipeline.errors import ServerError

if TYPE_CHECKING:
    from pipeline.config.schema import ResolvedConfig, ServerConfig
    from pipeline.dynamo.fleet import Fleet
    from pipeline.server.state import ServerState


def register(app: typer.Typer) -> None:
    for command in (repo, serve, stop, status, switch):
        app.command()(command)


def repo(
    model: Model = DEFAULT_MODEL,
    profile: Profile = DEFAULT_PROFILE,
    overrides: Set = None,
    out: Annotated[str | None, typer.Option("--out", help="Where to write it; beside the engine if left out.")] = None,
    llmapi: Annotated[
        str | None,
        typer.Option(
            "--llmapi",
            metavar="DRAFTS",
            help="For TensorRT-LLM's LLM API (1.3 and later) instead, without an engine. "
            "Who drafts: trie, ngram, suffix_automaton or none.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the Triton model repository, building the engine first if needed."""
    from pipeline.config.places import places
    from pipeline.server.road import prepare

    resolved = resolve(model, profile, overrides)
    if llmapi is not None:
        _write_llmapi(resolved, llmapi, None if out is None else Path(out).resolve(), as_json)
        return
    with output.working("building the engine and the repository") as note:
        served = prepare(resolved, places(), None if out is None else Path(out).resolve(), note)
    if as_json:
        output.print_json({"folder": str(served.repository.folder), "models": list(served.repository.models)})
    else:
        output.say(str(served.repository.folder))


def serve(
    model: Model = DEFAULT_MODEL,
    profile: Profile = DEFAULT_PROFILE,
    overrides: Set = None,
    background: Annotated[
        bool, typer.Option("--background", "-b", help="Return when the server is ready; end it with `lookahead stop`.")
    ] = False,
    verbose_log: Annotated[
        bool, typer.Option("--verbose-log", help="Triton's log of every step, in triton.log beside server.log.")
    ] = False,
    join: Annotated[
        bool, typer.Option("--join", help="Add this machine to the fleet that server.discovery finds: no front end.")
    ] = False,
    dry_run: DryRun = False,
    verbose: Verbose = False,
) -> None:
    """Start the server and wait until it is ready; build the engine and the repository first if needed."""
    resolved = resolve(model, profile, overrides)
    from pipeline.config.places import places
    from pipeline.decoding.compile_cache import ensure_compiled
    from pipeline.dynamo.fleet import check_fleet, openai_url, start_fleet, without_openai
    from pipeline.dynamo.services import INSTALL, has_dynamo
    from pipeline.server.road import check_start, prepare, run_dir, start_commands
    from pipeline.server.state import require_none

    where = places()
    if dry_run:
        from pipeline.config.resolution import dump_resolved

        commands = start_commands(resolved, where)
        output.say("\n".join(["server:", *(f"  {command.to_text()}" for command in commands)]))
        if verbose:
            output.say(dump_resolved(resolved).rstrip())
        return
    signal.signal(signal.SIGTERM, leave)
    require_none(run_dir(where))
    if resolved.profile.server.openai and not join and not has_dynamo():
        output.note(f"no OpenAI API, Triton alone: NVIDIA Dynamo is not installed. Install it with `{INSTALL}`.")
        resolved = without_openai(resolved)
    check_start(resolved, where)
    check_fleet(resolved, join)
    if open_to_all(resolved.profile.server):
        output.note(
            f"open to everybody who reaches {resolved.profile.server.host}: there are no server.api_keys. Make them "
            "with `lookahead key TENANT`."
        )
    with output.working("preparing the server") as note:
        ensure_compiled(note)
        served = prepare(resolved, where, note=note)
        note("starting the server")
        fleet = start_fleet(served, where, run_dir(where), join=join, detach=background, verbose=verbose_log, note=note)
    try:
        _announce(fleet.state, openai_url(run_dir(where)))
        if not background:
            _wait(fleet)
    finally:
        if not background:
            fleet.stop()


def open_to_all(server: ServerConfig) -> bool:
    """Whether clients of other machines are served without a key."""
    return not server.api_keys and not server.host.startswith("127.")


def stop(
    drain: Annotated[bool, typer.Option("--drain", help="Let running requests finish, for up to a minute.")] = False,
    as_json: Json = False,
) -> None:
    """Stop the server and everything that belongs to it."""
    from pipeline.config.places import places
    from pipeline.dynamo.fleet import stop_fleet
    from pipeline.server.road import run_dir

    stopped = stop_fleet(run_dir(places()), drain)
    if as_json:
        output.print_json({"stopped": stopped is not None})
    else:
        output.say("no server is running" if stopped is None else f"stopped {stopped.model} ({stopped.profile})")


def status(as_json: Json = False) -> None:
    """Say what is being served, and what it has done so far. Exit code 2 if nothing is running."""
    from pipeline.config.places import places
    from pipeline.dynamo.fleet import find_replicas, openai_url
    from pipeline.server.figures import read_figures
    from pipeline.server.log import LOG, crash_log, kept_log
    from pipeline.server.road import run_dir
    from pipeline.server.service import find_services
    from pipeline.server.state import find_server, is_ready

    folder = run_dir(places())
    state = find_server(folder)
    if state is None:
        log = crash_log(folder)
        if as_json:
            output.print_json({"running": False, "crash_log": None if log is None else str(log)})
        else:
            ended = "" if log is None else f"; one that ended by itself left its log in {log}"
            output.say(f"no server is running{ended}")
        raise typer.Exit(2)
    ready = is_ready(state)
    log = kept_log(folder)
    figures = read_figures(state.metrics_url) if ready else {}
    url, services, replicas = openai_url(folder), find_services(folder), find_replicas(folder)[1:]
    if as_json:
        found = {
            "ready": ready,
            "crash_log": None if log is None else str(log),
            "openai_url": url,
            "services": [service.model_dump(mode="json") for service in services],
            "replicas": [replica.model_dump(mode="json") for replica in replicas],
        }
        output.print_json({"running": True, **found, **state.model_dump(mode="json"), "figures": figures})
        return
    rows = [
        ("model", f"{state.model} ({state.profile})"),
        ("ready", "yes" if ready else "no"),
        ("up", f"{time.time() - state.started:.0f} s"),
        *([("restarts", f"{state.restarts}: {state.restart_reason}")] if state.restarts else []),
        *([] if url is None else [("OpenAI API", url)]),
        ("gRPC", state.grpc_url),
        ("HTTP", state.http_url),
        ("metrics", state.metrics_url),
        *((f"replica {number}", replica.grpc_url) for number, replica in enumerate(replicas, 2)),
        *((service.name, " ".join(f"{what} {port}" for what, port in service.ports.items())) for service in services),
        ("repository", state.repository),
        ("log", str(folder / LOG)),
        *([] if log is None else [("log of a crash", str(log))]),
        *((name, f"{value:.3g}" if value % 1 else f"{value:.0f}") for name, value in figures.items()),
    ]
    output.table(["server", ""], rows)


def switch(
    profile: Annotated[str, typer.Option("--profile", "-p", help="The other profile: a name, or a profile YAML.")],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Another model as well; the running one if left out.")
    ] = None,
    overrides: Set = None,
    as_json: Json = False,
) -> None:
    """Put another profile on the running server, at the same address; back to the old one if it does not come up.

    The engine is built while the old one serves. Then running requests finish, and new ones are refused until the new
    server is ready. It runs in the background."""
    from pipeline.config.places import places
    from pipeline.dynamo.fleet import as_running, openai_url, start_fleet, stop_fleet
    from pipeline.server.road import prepare, run_dir
    from pipeline.server.switch import require_other, resolve_other, running_served, switch_server

    where = places()
    folder = run_dir(where)
    before = running_served(where, folder)
    if model is None:
        resolved = resolve_other(before, profile, tuple(overrides or ()), folder, where)
    else:
        resolved = resolve(model, profile, overrides)
    require_other(before, resolved)
    signal.signal(signal.SIGTERM, leave)
    with output.working(f"preparing {resolved.profile.name}") as note:
        served = prepare(resolved, where, note=note)
        started = time.monotonic()
        old, new = as_running(before, folder), as_running(served, folder)
        state = switch_server(old, new, where, folder, note, stop_fleet, start_fleet).state
    seconds = time.monotonic() - started
    if as_json:
        output.print_json({"model": state.model, "profile": state.profile, "seconds": round(seconds, 3)})
    else:
        _announce(state, openai_url(folder))
        output.note(f"switched in {seconds:.1f} s")


def _write_llmapi(resolved: ResolvedConfig, method: str, out: Path | None, as_json: bool) -> None:
    from pipeline.config.places import places
    from pipeline.llmapi.repository import MODEL, render_llmapi
    from pipeline.llmapi.settings import method_named

    where = places()
    target = out or where.engines / resolved.model.name / f"llmapi-{resolved.profile.name}"
    folder = render_llmapi(resolved, method_named(method), target, where.home / "triton_repo")
    if as_json:
        output.print_json({"folder": str(folder), "models": [MODEL]})
    else:
        output.say(str(folder))
        output.note("checked against the documented contract only; not run with TensorRT-LLM")


def leave(number: int, frame: object) -> NoReturn:
    """SIGTERM ends a command as Ctrl-C does: whatever it started is stopped on the way out."""
    raise KeyboardInterrupt


def _announce(state: ServerState, url: str | None) -> None:
    body = json.dumps({"text_input": "Once upon a time", "max_tokens": 32, "stream": True})
    output.say(f"ready: {state.model} ({state.profile})")
    if url is not None:
        output.say(f"  OpenAI   {url}")
    output.say(f"  gRPC     {state.grpc_url}\n  HTTP     {state.http_url}\n  metrics  {state.metrics_url}")
    output.say(f"  curl -sN {state.http_url}/v2/models/lookahead_bls/generate_stream -d '{body}'")


def _wait(fleet: Fleet) -> None:
    """Return upon Ctrl-C or `lookahead stop`. Raises ServerError if a process of the server ended by itself."""
    output.note("Ctrl-C stops it")
    ended = fleet.wait()
    code = ended.poll()
    if code != 0:
        from pipeline.files import log_tail

        raise ServerError(
            f"{ended.name} ended by itself (exit code {code}). End of {ended.log_path}, which the next start keeps as "
            f"{ended.log_path.name}.1:\n{log_tail(ended.log_path)}"
        )
