"""The commands bench and report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipeline.cli import options as shared
from pipeline.cli import output
from pipeline.config.threads import wait_by_default
from pipeline.errors import UserError

if TYPE_CHECKING:
    from pipeline.bench.data.workload import WorkloadRow
    from pipeline.bench.measure import MeasureOptions
    from pipeline.bench.report.results import BenchResults, RequestRecord
    from pipeline.engine.artifact import Artifact


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
Warm = Annotated[
    Literal["cold", "warm"],
    typer.Option("--warm", help="cold: empty the draft sources before each prompt. warm: keep them."),
]
Concurrency = Annotated[
    str, typer.Option("--concurrency", help="Also measure tokens/s with N requests in flight; a list such as 1,2,4,8.")
]
Turns = Annotated[
    Literal["first", "all"],
    typer.Option("--turns", help="first: the first turn of a row. all: every turn, after the model's own outputs."),
]
CostCurve = Annotated[
    bool, typer.Option("--cost-curve", help="Measure pass times and store them with the engine for the planner.")
]
Grammar = Annotated[
    bool, typer.Option("--grammar", help="Measure JSON schemas instead of texts; --data is then a file of schemas.")
]


def bench(
    context: typer.Context,
    data: shared.Data = None,
    model: shared.Model = shared.DEFAULT_MODEL,
    profile: shared.Profile = shared.DEFAULT_PROFILE,
    overrides: shared.Set = None,
    strategies: shared.Strategies = None,
    baselines: Baselines = "",
    max_new_tokens: shared.MaxNewTokens = 128,
    limit: Annotated[int | None, shared.limit_to("rows")] = None,
    tasks: Annotated[
        str | None, typer.Option("--tasks", help="Tasks of the file to measure, separated by commas; default: all.")
    ] = None,
    warm: Warm = "cold",
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Repetitions of the workload.")] = 1,
    concurrency: Concurrency = "",
    turns: Turns = "first",
    raw: shared.Raw = False,
    temperature: shared.Temperature = 0.0,
    seed: shared.Seed = 0,
    cost_curve: CostCurve = False,
    grammar: Grammar = False,
    url: Annotated[
        str | None, typer.Option("--url", help="gRPC address of a server to measure, host:port; default: in process.")
    ] = None,
    allow_remote: shared.AllowRemote = False,
    json_path: Annotated[Path | None, shared.output_file("--json", what="File for all measurements, as JSON")] = None,
) -> None:
    """Measure strategies against plain decoding, interleaved in one process, and check every output."""
    if baselines:
        wait_by_default(os.environ)  # before torch is imported
    if grammar:
        shared.refuse_given(context, shared.given(context).keys() - _OF_GRAMMAR, "with --grammar")
    resolved = shared.resolve(model, profile, overrides)

    from pipeline.bench.bench import ALL_BASELINES, BenchPlan, check_plan, num_requests, run_bench
    from pipeline.bench.contenders.in_process import choose_strategies
    from pipeline.bench.data.workload import DEFAULT_PROMPTS, load_workload
    from pipeline.bench.grammar import DEFAULT_SCHEMAS, load_schemas
    from pipeline.bench.measure import MeasureOptions
    from pipeline.bench.report.results import require_writable, save_json
    from pipeline.decoding.request import SamplingParams
    from pipeline.decoding.strategy import STRATEGIES

    if json_path is not None:
        require_writable(json_path, data)
    shared.check_url(url, allow_remote, resolved)
    names = None if strategies is None else shared.words("--strategies", strategies, STRATEGIES)
    chosen_tasks = None if tasks is None else shared.words("--tasks", tasks)
    options = MeasureOptions(
        max_new_tokens=max_new_tokens,
        sampling=SamplingParams(temperature=temperature, seed=seed),
        warmth=warm,
        repeats=repeats,
        turns=turns,
        raw=raw or not resolved.model.chat_template,
    )
    if grammar:
        shared.require_in_process(resolved, "--grammar")
        chosen = choose_strategies(resolved.profile, ["hybrid"] if names is None else names)
        rows = load_schemas(data or DEFAULT_SCHEMAS, limit, chosen_tasks)
        _bench_schemas(shared.built_artifact(resolved), rows, chosen, options, json_path)
        return
    only_the_curve = cost_curve and not shared.given(context).keys() - _OF_COST_CURVE
    rows = [] if only_the_curve else load_workload(data or DEFAULT_PROMPTS, limit, chosen_tasks)
    levels = shared.numbers("--concurrency", concurrency, shared.MOST_REQUESTS) if concurrency else []
    others = shared.words("--baselines", baselines, ALL_BASELINES) if baselines else []
    plan = BenchPlan(tuple(choose_strategies(resolved.profile, names)), tuple(others), tuple(levels), cost_curve, url)
    check_plan(resolved, plan, options)
    if url is None:
        shared.require_in_process(resolved, "bench without --url")
    artifact = shared.built_artifact(resolved)
    with output.steps("measuring", num_requests(rows, plan, options)) as step:

        def on_record(record: RequestRecord) -> None:
            step(f"{record.id} {record.strategy}")

        results = run_bench(artifact, rows, plan, options, on_record, output.note)
    try:
        if json_path is not None:
            save_json(json_path, results)
    finally:
        show_results(results)  # also if the file cannot be written, such as on a full disk


def _bench_schemas(
    artifact: Artifact,
    rows: Sequence[WorkloadRow],
    chosen: Sequence[str],
    options: MeasureOptions,
    json_path: Path | None,
) -> None:
    """Measure JSON schemas with and without drafts and grammar. Raises typer.Exit with code 1 if an output is wrong."""
    from pipeline.bench.contenders.in_process import open_in_process
    from pipeline.bench.grammar import is_sound, measure_schemas, summary_table, verdict
    from pipeline.bench.report.results import save_rows
    from pipeline.bench.verify.verify import epsilon_of

    opened = open_in_process(artifact)
    options = replace(options, end_ids=opened.end_ids)
    with output.steps("measuring", options.repeats * 2 * len(chosen) * len(rows)) as step:
        records = measure_schemas(opened, rows, chosen, options, lambda record: step(f"{record.id} {record.strategy}"))
    try:
        if json_path is not None:
            save_rows(json_path, [record.model_dump() for record in records])
    finally:
        output.records(summary_table(records))
        output.say(verdict(records))
    if not is_sound(records, epsilon_of(artifact)):
        raise typer.Exit(1)


def show_results(results: BenchResults) -> None:
    """Print the measured tables of a report, and its headline."""
    from pipeline.bench.report.report import headline, sections_of

    for section in sections_of(results):
        if section.is_measured:
            output.records(section.table, section.title)
    if results.summary:
        output.say(headline(results).replace("**", "").replace("`", ""))  # a terminal shows no Markdown


def report(
    results: Annotated[
        Path, typer.Argument(help="Output of `lookahead bench --json`; - is standard input.", parser=shared.input_path)
    ],
    html: Annotated[Path | None, shared.output_file("--html", what="HTML file to write, with tables and plots")] = None,
    markdown: Annotated[Path | None, shared.output_file("--markdown", what="Markdown file to write")] = None,
    svg: Annotated[
        Path | None,
        typer.Option("--svg", help="Write a plot of the speeds by task to PATH-light.svg and PATH-dark.svg."),
    ] = None,
) -> None:
    """Write a report of bench results; without an option, Markdown on stdout."""
    from pipeline.bench.report.report import markdown_of
    from pipeline.bench.report.results import load_results, require_other, save_text

    loaded = load_results(results)
    if html is not None and markdown is not None and html.resolve() == markdown.resolve():
        raise UserError(f"--html and --markdown are both {html}. Name two files.")
    if svg == Path("-"):
        raise UserError("--svg writes two files, whose paths begin with its value; found -.")
    for path in filter(None, (html, markdown)):
        require_other(path, results)
    if html is not None:
        from pipeline.bench.report.page import html_of

        save_text(html, html_of(loaded))
        output.note(f"wrote {html}")
    if markdown is not None:
        save_text(markdown, markdown_of(loaded))
        output.note(f"wrote {markdown}")
    if svg is not None:
        from pipeline.bench.report.plots import THEMES, speed_picture

        for theme in THEMES:
            path = Path(f"{svg}-{theme}.svg")
            save_text(path, speed_picture(loaded, theme))
            output.note(f"wrote {path}")
    if html is None and markdown is None and svg is None:
        output.say(markdown_of(loaded))
