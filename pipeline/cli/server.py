"""The commands for the server's lifecycle: serve, stop, status, switch."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli import Terminated, continue_after, output
from pipeline.cli.options import DEFAULT_MODEL, DEFAULT_PROFILE, DryRun, Json, Model, Profile, Set, Verbose, resolve
from pipeline.config.folders import folders
from pipeline.errors import BuildError, ServerError

if TYPE_CHECKING:
    from pipeline.config.schema import ServerConfig
    from pipeline.dynamo.fleet import Fleet
    from pipeline.server.state import GuardedState, ServerState


def serve(
    model: Model = DEFAULT_MODEL,
    profile: Profile = DEFAULT_PROFILE,
    overrides: Set = None,
    background: Annotated[
        bool, typer.Option("--background", "-b", help="Return when the server is ready. `lookahead stop` stops it.")
    ] = False,
    verbose_log: Annotated[
        bool, typer.Option("--verbose-log", help="Write Triton's log of every step to triton.log beside server.log.")
    ] = False,
    join: Annotated[
        bool, typer.Option("--join", help="Add this machine as a worker to the fleet that server.discovery names.")
    ] = False,
    dry_run: DryRun = False,
    verbose: Verbose = False,
) -> None:
    """Start the server and wait until it is ready; build the engine and the repository first if needed.

    Address and ports are settings: --set server.host=0.0.0.0 --set server.openai_port=9000.
    """
    resolved = resolve(model, profile, overrides)
    from pipeline.checkpoint.disk import naming_full_disk
    from pipeline.dynamo.fleet import check_fleet, openai_url, start_fleet, stop_fleet, without_openai
    from pipeline.dynamo.services import INSTALL, has_dynamo
    from pipeline.server.run_folders import run_dir
    from pipeline.server.startup import check_start, prepare, start_commands
    from pipeline.server.state import require_no_server

    where = folders()
    if dry_run:
        from pipeline.config.resolution import dump_resolved

        commands = start_commands(resolved, where)
        output.say("\n".join(["server:", *(f"  {command.to_text()}" for command in commands)]))
        if verbose:
            output.say(dump_resolved(resolved).rstrip())
        return
    require_no_server(run_dir(where))
    asked = resolved.profile.server
    if asked.openai and asked.replicas == 1 and not join and not has_dynamo():
        output.note(f"serving without the OpenAI API: NVIDIA Dynamo is not installed. Install it with `{INSTALL}`.")
        resolved = without_openai(resolved)
    check_start(resolved, where)
    check_fleet(resolved, join)
    note_if_open(resolved.profile.server)
    with output.working("preparing the server") as note, naming_full_disk(run_dir(where)):
        served = prepare(resolved, where, note=note)
        note("starting the server")
        fleet = start_fleet(served, where, run_dir(where), join=join, detach=background, verbose=verbose_log, note=note)
    try:
        announce(fleet.state, openai_url(run_dir(where)), resolved.profile.server)
        if not background:
            _wait(fleet)
    except Terminated as terminated:
        continue_after(terminated)
        output.note("running requests finish first; a second signal ends them")
        # Exit code 0, also for supervisors such as systemd to which any other code is a failure.
        stop_fleet(run_dir(where), drain=True)
    except KeyboardInterrupt:
        output.note("stopping the server, which takes some seconds")
        raise
    finally:
        if not background:
            fleet.stop()


def note_if_open(server: ServerConfig) -> None:
    """Print a note if clients on other machines need no API key."""
    if not server.api_keys and not server.host.startswith("127."):
        output.note(
            f"every client that reaches {server.host} is served, because server.api_keys is empty. "
            "Make keys with `lookahead key TENANT`."
        )


def stop(
    drain: Annotated[bool, typer.Option("--drain", help="Wait up to a minute until running requests finish.")] = False,
    as_json: Json = False,
) -> None:
    """Stop the server and all its processes."""
    from pipeline.dynamo.fleet import stop_fleet
    from pipeline.server.run_folders import base_dir, free_dir, locked, run_dir

    where = folders()
    with locked(base_dir(where), lambda: output.note("waiting for the end of another switch or stop")):
        stopped = stop_fleet(run_dir(where), drain)
        stop_fleet(free_dir(base_dir(where)))  # servers of an interrupted switch
    if as_json:
        output.print_json({"stopped": stopped is not None})
    else:
        output.say("no server is running" if stopped is None else f"stopped {stopped.model} ({stopped.profile})")


def status(as_json: Json = False) -> None:
    """Print what is served and its counters. Exit code 2 if nothing is running."""
    from pipeline.dynamo.fleet import find_ended, openai_url
    from pipeline.server.log import LOG, crash_log, kept_log
    from pipeline.server.metrics import read_figures
    from pipeline.server.processes import seconds_since_start
    from pipeline.server.run_folders import RUN, run_dir
    from pipeline.server.service import find_services
    from pipeline.server.state import STATE, find_replicas, find_server, is_ready

    where = folders()
    folder = run_dir(where)
    state = find_server(folder)
    if state is None:
        log = crash_log(folder)
        if as_json:
            output.print_json({"running": False, "crash_log": None if log is None else str(log)})
        else:
            ended = "" if log is None else f"; the log of a process that exited is in {log}"
            output.say(f"no server is running{ended}")
        if where.shared_engines and any((where.shared_engines / RUN).rglob(STATE)):
            output.note(f"another user may run one from {where.shared_engines}; clients take its address with --url")
        raise typer.Exit(2)
    ready = is_ready(state)
    log = kept_log(folder)
    url, services = openai_url(folder), find_services(folder)
    replicas = {n: each for n, each in find_replicas(folder).items() if each.server_id != state.server_id}
    serving = [*([state] if ready else []), *filter(is_ready, replicas.values())]
    # Behind a gateway, the first server's page has the metrics of all.
    pages = serving[:1] if state.gateway_id else serving
    try:
        figures = read_figures([each.metrics_url for each in pages])
    except ServerError as error:  # a busy server, or one that starts again now
        figures = {}
        output.note(str(error))
    not_running, costs = find_ended(folder, state.replicas, bool(state.gateway_id)), _costs_of(state)
    if as_json:
        found = {
            "ready": ready,
            "crash_log": None if log is None else str(log),
            "openai_url": url,
            "services": [service.model_dump(mode="json") for service in services],
            "replicas": [replica.model_dump(mode="json") for replica in replicas.values()],
            "not_running": not_running,
            "cost_curve": costs,
        }
        output.print_json({"running": True, **found, **state.model_dump(mode="json"), "figures": figures})
        return
    rows = {
        "model": f"{state.model} ({state.profile})",
        "ready": "yes" if ready else "no",
        "not running": ", ".join(not_running),
        "up": f"{seconds_since_start(state.guard_pid):.0f} s",
        "restarts": f"{state.restarts}: {state.restart_reason}" if state.restarts else None,
        "OpenAI API": url,
        "gRPC": state.grpc_url,
        "HTTP": state.http_url,
        "metrics": state.metrics_url,
        **{f"replica {number}": with_restarts(replica.grpc_url, replica) for number, replica in replicas.items()},
        **{
            service.name: with_restarts(" ".join(f"{what} {port}" for what, port in service.ports.items()), service)
            for service in services
        },
        "repository": state.repository,
        "cost of passes": costs,
        "log": folder / LOG,
        "log of a crash": log,
        **{name: f"{value:.3g}" if value % 1 else f"{value:.0f}" for name, value in figures.items()},
    }
    output.table(["server", ""], [(name, value) for name, value in rows.items() if value])


def with_restarts(address: str, state: GuardedState) -> str:
    """A row's text: the address of a process, and how often its guard has restarted it."""
    return f"{address}, restarts {state.restarts}: {state.restart_reason}" if state.restarts else address


def _costs_of(state: ServerState) -> str | None:
    """Text about the pass costs of the draft planner; None if the planner does not use costs."""
    from pipeline.engine.artifact import artifact_dir, load_artifact
    from pipeline.tuning.planned_engine import stored_cost_curve

    where = folders()
    try:
        folder = artifact_dir(where, state.model, state.profile)
        stored = stored_cost_curve(load_artifact(folder, where.cache, check_runnable=False))
    except BuildError as error:
        return f"not known: {error}"
    return None if stored is None else stored.to_text()


def switch(
    profile: Annotated[str, typer.Option("--profile", "-p", help="Profile to switch to: a name, or a profile YAML.")],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Model to switch to; default: the running one.")
    ] = None,
    overrides: Set = None,
    as_json: Json = False,
) -> None:
    """Switch the running server to another profile, at the same address. If the new server does not start, the old one
    continues.

    The new server starts beside the old one and takes over when it is ready. The old one stops after its last request.
    If the memory does not hold both, running requests finish first, and new ones are refused until the new server is
    ready. The new server runs in the background.

    In a fleet of several machines switch the one with the OpenAI API first. If the others would get no requests any
    more, the command prints what to run there."""
    from pipeline.checkpoint.disk import naming_full_disk
    from pipeline.dynamo.fleet import openai_url
    from pipeline.dynamo.fleet_switch import switch_fleet
    from pipeline.dynamo.running_fleet import as_running
    from pipeline.server.run_folders import base_dir, run_dir
    from pipeline.server.startup import prepare
    from pipeline.server.switch import check_switch, resolve_other, running_served

    where = folders()
    folder = run_dir(where)
    before = as_running(running_served(where, folder), folder)
    resolved = resolve_other(before, profile, tuple(overrides or ()), where, model, output.note)
    note_if_open(resolved.profile.server.model_copy(update={"host": before.resolved.profile.server.host}))
    check_switch(before, resolved, where)
    with output.working(f"preparing {resolved.profile.name}") as note, naming_full_disk(folder):
        after = as_running(prepare(resolved, where, note=note), folder)
        started = time.monotonic()
        remedy = f"`{switch_command(profile, model, overrides or ())}`"
        state = switch_fleet(before, after, where, base_dir(where), note, remedy).state
    seconds = time.monotonic() - started
    if as_json:
        output.print_json({"model": state.model, "profile": state.profile, "seconds": round(seconds, 3)})
    else:
        announce(state, openai_url(run_dir(where)), resolved.profile.server)
        output.note(f"switched in {seconds:.1f} s")


def switch_command(profile: str, model: str | None, overrides: Sequence[str]) -> str:
    """The command of the same switch on another machine, which keeps its own settings of the server section."""
    words = ["lookahead", "switch", "--profile", profile, *(["--model", model] if model else [])]
    for override in overrides:
        words += [] if override.startswith("server.") else ["--set", override]
    return shlex.join(words)


def announce(state: ServerState, url: str | None, server: ServerConfig) -> None:
    """Print the addresses of a server that is ready, and a first request. url: of its OpenAI API, if any."""
    key = '-H "Authorization: Bearer $LOOKAHEAD_API_KEY" ' if server.api_keys else ""
    body = json.dumps({"text_input": "Once upon a time", "max_tokens": 32, "stream": True})
    output.say(f"ready: {state.model} ({state.profile})")
    if url is not None:
        output.say(f"  OpenAI   {url}")
    output.say(f"  gRPC     {state.grpc_url}\n  HTTP     {state.http_url}\n  metrics  {state.metrics_url}")
    output.say(f"  curl -sN {key}{state.http_url}/v2/models/lookahead_bls/generate_stream -d '{body}'")


def _wait(fleet: Fleet) -> None:
    """Wait for Ctrl-C or `lookahead stop`. Raises ServerError if a process of the server exits unexpectedly."""
    output.note("Ctrl-C stops it")
    ended = fleet.wait(output.note)
    code = ended.poll()
    if code != 0:
        from pipeline.files import log_tail

        raise ServerError(
            f"{ended.name} exited unexpectedly (exit code {code}). End of {ended.log_path} (the next start "
            f"renames it to {ended.log_path.name}.1):\n{log_tail(ended.log_path)}"
        )
