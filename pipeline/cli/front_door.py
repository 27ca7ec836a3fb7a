"""The command `front-door`, which measures what stands before Triton."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli import output
from pipeline.cli.options import Json
from pipeline.config.places import places


def register(app: typer.Typer) -> None:
    app.command(name="front-door")(front_door)


def front_door(
    num_requests: Annotated[int, typer.Option("--requests", min=1, help="Requests on each way.")] = 100,
    as_json: Json = False,
) -> None:
    """Measure time to first token through the OpenAI API and the gateway against Triton itself, on the running server.

    The ways take turns, one request at a time. LOOKAHEAD_API_KEY is sent as the API key."""
    from pipeline.bench.front_door import cost_of, times_to_first_token, ways_to
    from pipeline.dynamo.fleet import openai_url
    from pipeline.server.startup import run_dir
    from pipeline.server.state import require_server

    folder = run_dir(places())
    ways = ways_to(require_server(folder), openai_url(folder))
    with output.steps("asking", num_requests * len(ways)) as step:
        costs = cost_of(times_to_first_token(ways, num_requests, step))
    if as_json:
        output.print_json({"requests": num_requests, "ways": costs})
        return
    rows = [
        (name, *(f"{cost[figure]:.1f}" for figure in ("median_ms", "p90_ms", "added_ms")))
        for name, cost in costs.items()
    ]
    output.table(["time to first token", "median ms", "90 % below ms", "added ms"], rows)
