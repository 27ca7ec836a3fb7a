"""The commands that measure: bench, load, front-door, report."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from pipeline.cli import output
from pipeline.cli.grammar import bench_schemas
from pipeline.cli.list_options import numbers, one_of, words
from pipeline.cli.options import (
    DEFAULT_MODEL,
    DEFAULT_PROFILE,
    AllowRemote,
    Data,
    Json,
    MaxNewTokens,
    Model,
    Profile,
    Raw,
    Seed,
    Set,
    Strategies,
    Temperature,
    built_artifact,
    check_url,
    given,
    limit_to,
    refuse_given,
    require_in_process,
    resolve,
)
from pipeline.config.places import places
from pipeline.config.threads import wait_by_default
from pipeline.errors import UserError

if TYPE_CHECKING:
    from pipeline.bench.bench import BenchPlan
    from pipeline.bench.data.workload import WorkloadRow
    from pipeline.bench.load import LoadResult
    from pipeline.bench.measure import MeasureOptions
    from pipeline.bench.report.results import BenchResults
    from pipeline.engine.artifact import Artifact
    from pipeline.triton_models.text_codec import TextCodec


# Limit of requests in flight: each has a thread in this process.
MOST_REQUESTS = 1024
# Options that have an effect with --grammar, and those with which --cost-curve measures nothing else.
_OF_ENGINE = {"model", "profile", "overrides", "json_path"}
_OF_GRAMMAR = _OF_ENGINE | {
    *("grammar", "data", "strategies", "max_new_tokens", "limit", "tasks", "warm", "repeats", "raw", "temperature"),
    "seed",
}
_OF_COST_CURVE = _OF_ENGINE | {"cost_curve"}

Baselines = Annotated[
    str,
    typer.Option(
        "--baselines",
        help="Other engines to measure: hf, hf-prompt-lookup (transformers), llama-cpp, llama-cpp-prompt-lookup.",
    ),
]
Warm = Annotated[str, typer.Option("--warm", help="cold: empty the draft sources before each prompt. warm: keep them.")]
Concurrency = Annotated[
    str, typer.Option("--concurrency", help="Also measure tokens/s with N requests in flight; a list such as 1,2,4,8.")
]
Turns = Annotated[str, typer.Option("--turns", help="first: one turn. all: feed the outputs back as a conversation.")]
CostCurve = Annotated[
    bool, typer.Option("--cost-curve", help="Measure pass times and store them with the engine for the planner.")
]
Grammar = Annotated[
    bool, typer.Option("--grammar", help="Measure JSON schemas instead of texts; --data is then a file of schemas.")
]


def register(app: typer.Typer) -> None:
    app.command()(bench)
    app.command()(load)
    app.command()(front_door)
    app.command()(report)


def bench(
    context: typer.Context,
    data: Data = None,
    model: Model = DEFAULT_MODEL,
    profile: Profile = DEFAULT_PROFILE,
    overrides: Set = None,
    strategies: Strategies = None,
    baselines: Baselines = "",
    max_new_tokens: MaxNewTokens = 128,
    limit: Annotated[int | None, limit_to("rows")] = None,
    tasks: Annotated[
        str | None, typer.Option("--tasks", help="Tasks of the file to measure, separated by commas; default: all.")
    ] = None,
    warm: Warm = "cold",
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Repetitions of the workload.")] = 1,
    concurrency: Concurrency = "",
    turns: Turns = "first",
    raw: Raw = False,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    cost_curve: CostCurve = False,
    grammar: Grammar = False,
    url: Annotated[
        str | None, typer.Option("--url", help="gRPC address of a server to measure, host:port; default: in process.")
    ] = None,
    allow_remote: AllowRemote = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="File for all measurements, as JSON.")] = None,
) -> None:
    """Measure strategies against plain decoding, interleaved in one process, and check every output."""
    from pipeline.bench.bench import BenchPlan, check_plan
    from pipeline.bench.contenders.in_process import choose_strategies, codec_of
    from pipeline.bench.data.workload import DEFAULT_PROMPTS, load_workload
    from pipeline.bench.grammar import DEFAULT_SCHEMAS, load_schemas
    from pipeline.bench.measure import MeasureOptions
    from pipeline.bench.report.results import require_writable, save_json
    from pipeline.decoding.request import SamplingParams

    if grammar:
        refuse_given(context, given(context).keys() - _OF_GRAMMAR, "with --grammar")
    if baselines:
        wait_by_default(os.environ)
    one_of("--warm", warm, ("cold", "warm"))
    one_of("--turns", turns, ("first", "all"))
    if json_path is not None:
        require_writable(json_path, data)
    resolved = resolve(model, profile, overrides)
    check_url(url, allow_remote, resolved)
    names = None if strategies is None else words("--strategies", strategies)
    chosen_tasks = None if tasks is None else words("--tasks", tasks)
    options = MeasureOptions(
        max_new_tokens=max_new_tokens,
        sampling=SamplingParams(temperature=temperature, seed=seed),
        warmth=cast(Literal["cold", "warm"], warm),
        repeats=repeats,
        turns=cast(Literal["first", "all"], turns),
        raw=raw or not resolved.model.chat_template,
    )
    if grammar:
        require_in_process(resolved, "--grammar")
        chosen = choose_strategies(resolved.profile, ["hybrid"] if names is None else names)
        rows = load_schemas(data or DEFAULT_SCHEMAS, limit, chosen_tasks)
        bench_schemas(built_artifact(resolved), rows, chosen, options, json_path)
        return
    only_the_curve = cost_curve and not given(context).keys() - _OF_COST_CURVE
    rows = [] if only_the_curve else load_workload(data or DEFAULT_PROMPTS, limit, chosen_tasks)
    levels = numbers("--concurrency", concurrency, MOST_REQUESTS) if concurrency else []
    others = words("--baselines", baselines) if baselines else []
    plan = BenchPlan(tuple(choose_strategies(resolved.profile, names)), tuple(others), tuple(levels), cost_curve, url)
    check_plan(resolved, rows, plan, options)
    if url is None:
        require_in_process(resolved, "bench without --url")
    artifact = built_artifact(resolved)
    codec = codec_of(artifact)
    results = _measure(artifact, codec, rows, plan, replace(options, end_ids=codec.end_ids))
    if json_path is not None:
        save_json(json_path, results)
    show_results(results)


def _measure(
    artifact: Artifact, codec: TextCodec, rows: list[WorkloadRow], plan: BenchPlan, options: MeasureOptions
) -> BenchResults:
    from pipeline.bench.bench import Progress, num_requests, run_bench

    with output.steps("measuring", num_requests(rows, plan, options)) as step:
        progress = Progress(lambda record: step(f"{record.id} {record.strategy}"), output.note)
        return run_bench(artifact, codec, rows, plan, options, progress)


def show_results(results: BenchResults) -> None:
    from pipeline.bench.report.report import headline, sections_of

    for section in sections_of(results):
        if section.is_measured and section.table is not None:
            output.table(section.table.columns, section.table.rows, section.title)
    if results.summary:
        output.say(headline(results).replace("**", "").replace("`", ""))  # a terminal shows no Markdown


def load(
    url: Annotated[
        str | None, typer.Option("--url", help="gRPC address of the server, host:port; default: the running one.")
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, max=MOST_REQUESTS, help="Number of clients.")] = 4,
    duration: Annotated[float, typer.Option("--duration", min=0.1, help="Duration of sending, in seconds.")] = 30.0,
    max_requests: Annotated[
        int | None, typer.Option("--max-requests", min=1, help="Number of requests after which the run ends.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.01, help="Maximum requests per second of all clients together.")
    ] = None,
    data: Data = None,
    strategies: Annotated[
        str | None,
        typer.Option("--strategies", help="Strategies to use in turn; default: the one of the server's profile."),
    ] = None,
    max_new_tokens: MaxNewTokens = 64,
    raw: Raw = False,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    allow_remote: AllowRemote = False,
    as_json: Json = False,
) -> None:
    """Measure latencies and errors of a running server under load; each client sends one request at a time.

    Exit code 1 if a request failed, or did not end within half a minute after the duration.
    """
    from pipeline.bench.contenders.remote import generate, query_of
    from pipeline.bench.data.workload import DEFAULT_PROMPTS, load_workload
    from pipeline.bench.load import LoadPlan, run_load, summary_of
    from pipeline.decoding.request import SamplingParams
    from pipeline.decoding.strategy import STRATEGIES
    from pipeline.server.startup import run_dir
    from pipeline.server.state import require_server

    rows = load_workload(data or DEFAULT_PROMPTS)
    target = url or require_server(run_dir(places()), takes_url=True).grpc_url
    check_url(target, allow_remote)
    names: list[str | None] = [None] if strategies is None else [*words("--strategies", strategies)]
    for name in filter(None, names):
        one_of("--strategies", name, STRATEGIES)
    sampling = SamplingParams(temperature=temperature, seed=seed)
    queries = [query_of(row.first_prompt(raw), max_new_tokens, name, sampling) for row in rows for name in names]
    plan = LoadPlan(concurrency, duration, max_requests, rate)
    with output.steps("sending", max_requests) as step:

        def on_answer(result: LoadResult) -> None:
            step(f"{result.num_requests} done, {sum(result.errors.values())} errors")

        summary = summary_of(run_load(partial(generate, target), queries, plan, on_answer))
    if as_json:
        output.print_json({"url": target, "concurrency": concurrency, **summary})
    else:
        output.table(["figure", "value"], [(name, _shown(value)) for name, value in summary.items()])
    if summary["errors"]:
        raise typer.Exit(1)


def front_door(
    num_requests: Annotated[
        int, typer.Option("--requests", min=1, help="Number of requests through each interface.")
    ] = 100,
    as_json: Json = False,
) -> None:
    """Compare time to first token through the OpenAI API and the gateway with Triton itself, on the running server.

    Sends one request at a time, to each in turn. The API key is LOOKAHEAD_API_KEY."""
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


def report(
    results: Annotated[Path, typer.Argument(help="Output of `lookahead bench --json`.")],
    html: Annotated[Path | None, typer.Option("--html", help="HTML file to write, with tables and plots.")] = None,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="Write Markdown.")] = None,
    svg: Annotated[
        Path | None,
        typer.Option("--svg", help="Write a plot of the speeds by task to PATH-light.svg and PATH-dark.svg."),
    ] = None,
) -> None:
    """Write a report of bench results; without an option, Markdown on stdout."""
    from pipeline.bench.report.page import html_of
    from pipeline.bench.report.plots import THEMES, speed_picture
    from pipeline.bench.report.report import markdown_of
    from pipeline.bench.report.results import load_results, require_other, save_text

    loaded = load_results(results)
    if html is not None and markdown is not None and html.resolve() == markdown.resolve():
        raise UserError(f"--html and --markdown are both {html}. Name two files.")
    for path in filter(None, (html, markdown)):
        require_other(path, results)
    if html is not None:
        save_text(html, html_of(loaded))
        output.note(f"wrote {html}")
    if markdown is not None:
        save_text(markdown, markdown_of(loaded))
        output.note(f"wrote {markdown}")
    if svg is not None:
        for theme in THEMES:
            path = Path(f"{svg}-{theme}.svg")
            save_text(path, speed_picture(loaded, theme))
            output.note(f"wrote {path}")
    if html is None and markdown is None and svg is None:
        output.say(markdown_of(loaded))


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {entry}" for name, entry in value.items()) or "-"
    return "-" if value is None else str(value)
