"""The command `batch`, which answers a file of requests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli import output
from pipeline.cli.options import Json
from pipeline.config.places import places
from pipeline.errors import RequestError


def register(app: typer.Typer) -> None:
    app.command()(batch)


def batch(
    requests: Annotated[Path, typer.Argument(help="OpenAI batch file: JSON lines with custom_id, url and body.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Results as JSON lines, in the order of the requests.")],
    url: Annotated[
        str | None, typer.Option("--url", help="Base URL of an OpenAI API; that of `lookahead serve` if left out.")
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Requests at once.")] = 16,
    timeout_s: Annotated[float, typer.Option("--timeout", min=1, help="Seconds for one request.")] = 600.0,
    as_json: Json = False,
) -> None:
    """Answer a file of requests at full load. After an interruption the same command continues where it stopped.

    Each result that is not 200 stands in the output with its error; the exit code is then 1. OPENAI_API_KEY is sent as
    the API key.
    """
    from pipeline.dynamo.batch import journal_path, read_batch, read_journal, run_batch

    if not requests.is_file():
        raise RequestError(f"{requests} is not a file. Name an OpenAI batch file.")
    asked = read_batch(requests)
    known = len(read_journal(out))
    if known:
        output.note(f"{known} requests are done already ({journal_path(out)})")
    with output.steps("answering", len(asked) - known) as step:
        num_failed = run_batch(
            asked,
            out,
            url or _url(),
            api_key=os.environ.get("OPENAI_API_KEY", "none"),
            concurrency=concurrency,
            timeout_s=timeout_s,
            on_done=step,
        )
    if as_json:
        output.print_json({"out": str(out), "requests": len(asked), "failed": num_failed})
    else:
        output.say(f"{out}: {len(asked)} requests, {num_failed} failed")
    if num_failed:
        raise typer.Exit(1)


def _url() -> str:
    from pipeline.dynamo.fleet import openai_url
    from pipeline.errors import ServerError
    from pipeline.server.startup import run_dir

    if (url := openai_url(run_dir(places()))) is None:
        raise ServerError("No OpenAI API is running. Start one with `lookahead serve --background`, or name it: --url.")
    return url
