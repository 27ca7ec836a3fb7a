"""`lookahead verify --failover`: start a fleet, kill processes under load and compare every answer."""

from __future__ import annotations

from pathlib import Path

import typer

from pipeline.cli import output
from pipeline.config.folders import Folders
from pipeline.config.schema import ResolvedConfig
from pipeline.dynamo.failover import FailoverReport, verify_failover
from pipeline.dynamo.fleet import Fleet, check_fleet, openai_url, start_fleet
from pipeline.repository.names import REPOSITORY
from pipeline.server.ports import LOOPBACK
from pipeline.server.run_folders import temporarily
from pipeline.server.startup import check_start, prepare

# Limit of printed differences and failures.
_SHOWN = 5
# Without API keys, because the clients of the test have none.
_OWN = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "openai_port": 0, "host": LOOPBACK, "api_keys": ()}


def run_failover(resolved: ResolvedConfig, folders: Folders, num_kills: int, max_tokens: int, as_json: bool) -> None:
    """Run the comparison. Raises typer.Exit with code 1 if an output differs or a request fails."""
    server = resolved.profile.server
    settings = {"openai": True, "replicas": max(2, server.replicas), "max_restarts": num_kills, **_OWN}
    resolved = resolved.with_settings("server", **settings)
    check_start(resolved, folders)
    check_fleet(resolved)
    with output.working("failover") as note:

        def start(folder: Path) -> Fleet:
            # In its own folder, because a server may run from the repository beside the engine.
            served = prepare(resolved, folders, folder / REPOSITORY, note)
            return start_fleet(served, folders, folder, note=note)

        with temporarily(start, on_stop=lambda: note("stopping the fleet")) as fleet:
            url = openai_url(fleet.servers[0].run_dir)
            assert url is not None, "a fleet with the OpenAI API has a URL"
            report = verify_failover(fleet, url, resolved.model.name, num_kills, max_tokens, note)
    _show(report, as_json)
    if not report.passed:
        raise typer.Exit(1)


def _show(report: FailoverReport, as_json: bool) -> None:
    if as_json:
        output.print_json({**report.counts(), "differences": report.differences, "failures": report.failures})
        return
    output.table(["failover", ""], [(name.replace("_", " "), f"{value}") for name, value in report.counts().items()])
    for sentence in (*report.differences[:_SHOWN], *report.failures[:_SHOWN]):
        output.say(sentence)
