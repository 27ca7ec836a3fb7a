"""`lookahead demo`: one prompt on every way into a server of its own, and what drafts bring."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pipeline.cli import output
from pipeline.config.places import Places
from pipeline.config.schema import ResolvedConfig
from pipeline.errors import ServerError, UserError
from pipeline.server.client import Completion, Protocol, TextQuery, complete
from pipeline.server.road import check_start, launch, prepare
from pipeline.server.state import ServerState

PROMPT = (
    "Rewrite this function with type hints and keep everything else as it is:\n\n"
    "def greatest_common_divisor(a, b):\n    while b:\n        a, b = b, a % b\n    return a\n\n"
    "def least_common_multiple(a, b):\n    return a * b // greatest_common_divisor(a, b)\n"
)


class _Way(NamedTuple):
    protocol: Protocol
    stream: bool


_WAYS = (_Way("grpc", True), _Way("grpc", False), _Way("http", True), _Way("http", False))


def run_demo(resolved: ResolvedConfig, places: Places, max_tokens: int) -> None:
    """Raises ServerError if a way gives another text than the others: drafts must change nothing."""
    check_start(resolved, places)
    with output.working("building the engine") as note:
        served = prepare(resolved, places, note=note)
    query = TextQuery(
        PROMPT,
        max_tokens,
        use_chat_template=served.resolved.model.chat_template or None,
        return_statistics=True,
    )
    with _run_folder() as folder:
        with output.working("starting the server") as note:
            running = launch(served, places, folder, note=note)
        try:
            state = running.state
            output.say(f"{state.model} ({state.profile}) on gRPC {state.grpc_url} and HTTP {state.http_url}\n")
            rows = [_row("none", way, query, state) for way in _WAYS]
            rows += [_row("auto", way, query, state) for way in _WAYS]
        finally:
            output.note("stopping the server")
            running.stop()
    _report(rows)


@contextmanager
def _run_folder() -> Iterator[Path]:
    """Removed at the end, unless that is an error, which may speak of the log in it."""
    folder = Path(tempfile.mkdtemp(prefix="lookahead-demo-"))
    try:
        yield folder
    except UserError:
        raise
    except BaseException:
        shutil.rmtree(folder)
        raise
    shutil.rmtree(folder)


class _Row(NamedTuple):
    strategy: str
    way: _Way
    completion: Completion


def _row(strategy: str, way: _Way, query: TextQuery, state: ServerState) -> _Row:
    """Ask on one way; the first time with a strategy the text is shown as it comes."""
    asked = replace(query, strategy=strategy, stream=way.stream)
    url = state.grpc_url if way.protocol == "grpc" else state.http_url
    live = way.stream and way.protocol == "grpc"
    if live:
        output.say(f"--- {'without drafts' if strategy == 'none' else 'with drafts'}, text as it arrives")

    def show(text: str) -> None:
        if live:
            sys.stdout.write(text)
            sys.stdout.flush()

    completion = complete(asked, url, way.protocol, on_text=show)
    if live:
        output.say("\n")
    return _Row(strategy, way, completion)


def _report(rows: list[_Row]) -> None:
    reference = rows[0].completion
    cells = []
    for row in rows:
        statistics = row.completion.statistics
        assert statistics is not None, "statistics were asked for"
        assert reference.statistics is not None, "statistics were asked for"
        same = row.completion.text == reference.text and statistics["output_ids"] == reference.statistics["output_ids"]
        tokens = len(statistics["output_ids"])
        cells.append(
            (
                row.strategy if row.strategy == "none" else f"{row.strategy} ({statistics['strategy']})",
                row.way.protocol,
                "yes" if row.way.stream else "no",
                tokens,
                f"{tokens / row.completion.total_s:.1f}",
                f"{statistics['mean_acceptance_length']:.2f}",
                "yes" if same else "NO",
            )
        )
    output.table(["strategy", "protocol", "streaming", "tokens", "tokens/s", "tokens per step", "identical"], cells)
    output.say(
        "Later rows find the prompt's KV cache, and those with drafts the earlier output; the first row found neither."
    )
    if any(cell[-1] == "NO" for cell in cells):
        raise ServerError("The outputs differ; run `lookahead verify` to see where.")
