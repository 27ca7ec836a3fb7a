"""The commands that measure a running server: load, api-overhead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli import options as shared
from pipeline.cli import output
from pipeline.config.folders import folders

if TYPE_CHECKING:
    from pipeline.bench.load import LoadResult
    from pipeline.server.client import Completion, TextQuery


def load(
    url: Annotated[
        str | None, typer.Option("--url", help="gRPC address of the server, host:port; default: the running one.")
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, max=shared.MOST_REQUESTS, help="Number of clients.")
    ] = 4,
    duration: Annotated[
        float, typer.Option("--duration", min=0.1, max=1e6, help="Duration of sending, in seconds.")
    ] = 30.0,
    max_requests: Annotated[
        int | None, typer.Option("--max-requests", min=1, help="Number of requests after which the run ends.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.01, help="Maximum requests per second of all clients together.")
    ] = None,
    data: shared.Data = None,
    strategies: Annotated[
        str | None,
        typer.Option("--strategies", help="Strategies to use in turn; default: the one of the server's profile."),
    ] = None,
    max_new_tokens: shared.MaxNewTokens = 64,
    raw: shared.Raw = False,
    temperature: shared.Temperature = 0.0,
    seed: shared.Seed = 0,
    allow_remote: shared.AllowRemote = False,
    as_json: shared.Json = False,
) -> None:
    """Measure latencies and errors of a running server under load; each client sends one request at a time.

    Exit code 1 if a request failed, or did not end within half a minute after the duration.
    """
    from pipeline.bench.contenders.remote import query_of
    from pipeline.bench.data.workload import DEFAULT_PROMPTS, load_workload
    from pipeline.bench.load import LoadPlan, run_load, summary_of
    from pipeline.decoding.request import SamplingParams
    from pipeline.decoding.strategy import STRATEGIES
    from pipeline.server.client import complete
    from pipeline.server.run_folders import run_dir
    from pipeline.server.state import require_server

    rows = load_workload(data or DEFAULT_PROMPTS)
    target = url or require_server(run_dir(folders()), takes_url=True).grpc_url
    shared.check_url(target, allow_remote)
    names = [None] if strategies is None else shared.words("--strategies", strategies, STRATEGIES)
    sampling = SamplingParams(temperature=temperature, seed=seed)
    queries = [query_of(row.first_prompt(raw), max_new_tokens, name, sampling) for row in rows for name in names]
    plan = LoadPlan(concurrency, duration, max_requests, rate)

    def send(query: TextQuery, timeout_s: float) -> Completion:
        return complete(query, target, "grpc", timeout_s)

    with output.steps("sending", max_requests) as step:

        def on_answer(result: LoadResult) -> None:
            step(f"{result.num_requests} done, {sum(result.errors.values())} errors")

        summary = summary_of(run_load(send, queries, plan, on_answer))
    if as_json:
        output.print_json({"url": target, "concurrency": concurrency, **summary})
    else:
        output.table(["figure", "value"], [(name, _shown(value)) for name, value in summary.items()])
    if summary["errors"]:
        raise typer.Exit(1)


def api_overhead(
    num_requests: Annotated[
        int, typer.Option("--requests", min=1, help="Number of requests through each interface.")
    ] = 100,
    as_json: shared.Json = False,
) -> None:
    """Compare time to first token through the OpenAI API and the gateway with Triton itself, on the running server.

    Sends one request at a time, to each in turn. The API key is LOOKAHEAD_API_KEY."""
    from pipeline.bench.api_overhead import cost_of, endpoints_of, times_to_first_token
    from pipeline.dynamo.fleet import openai_url
    from pipeline.server.run_folders import run_dir
    from pipeline.server.state import require_server

    folder = run_dir(folders())
    endpoints = endpoints_of(require_server(folder), openai_url(folder))
    with output.steps("asking", num_requests * len(endpoints)) as step:
        costs = cost_of(times_to_first_token(endpoints, num_requests, step))
    if as_json:
        output.print_json({"requests": num_requests, "ways": costs})
        return
    rows = [
        (name, *(f"{cost[figure]:.1f}" for figure in ("median_ms", "p90_ms", "added_ms")))
        for name, cost in costs.items()
    ]
    output.table(["time to first token", "median ms", "90 % below ms", "added ms"], rows)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {entry}" for name, entry in value.items()) or "-"
    return "-" if value is None else str(value)
