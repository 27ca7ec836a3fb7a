"""Verbs that measure and prove: bench, verify, report, load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, cast

import typer

from pipeline.cli import output
from pipeline.cli.options import DEFAULT_MODEL, DEFAULT_PROFILE, Json, Model, Profile, Set, resolve
from pipeline.errors import ServerError, UserError

if TYPE_CHECKING:
    from pipeline.bench.load import LoadResult
    from pipeline.bench.results import BenchResults, RequestRecord
    from pipeline.bench.verify import Comparison
    from pipeline.engine.artifact import Artifact

# typer reads annotations at run time, so these must be Optional and not strings with "|" on Python 3.10.
OptionalPath = Optional[Path]  # noqa: UP045
OptionalInt = Optional[int]  # noqa: UP045
OptionalFloat = Optional[float]  # noqa: UP045
OptionalText = Optional[str]  # noqa: UP045

Data = Annotated[OptionalPath, typer.Option("--data", help="JSON Lines of {id, task, prompt} or {id, task, turns}.")]
Strategies = Annotated[
    OptionalText, typer.Option("--strategies", help="E.g. none,trie,hybrid; default: all that the profile drafts for.")
]
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", min=1, help="Longest output.")]
Raw = Annotated[bool, typer.Option("--raw", help="Prompts as they are, without the chat template.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of sampled outputs.")]
AllowRemote = Annotated[bool, typer.Option("--allow-remote", help="The server may be another machine.")]


def register(app: typer.Typer) -> None:
    app.command()(bench)
    app.command()(verify)
    app.command()(load)
    app.command()(report)


def bench(
    data: Data = None,
    model: Model = DEFAULT_MODEL,
    profile: Profile = DEFAULT_PROFILE,
    overrides: Set = None,
    strategies: Strategies = None,
    baselines: Annotated[
        str, typer.Option("--baselines", help="Of hf,hf-prompt-lookup: generate of transformers on the same weights.")
    ] = "",
    max_new_tokens: MaxNewTokens = 128,
    limit: Annotated[OptionalInt, typer.Option("--limit", min=1, help="Only the first so many rows.")] = None,
    tasks: Annotated[OptionalText, typer.Option("--tasks", help="Only these tasks of the file.")] = None,
    warm: Annotated[
        str, typer.Option("--warm", help="cold: draft sources emptied before each prompt. warm: kept over prompts.")
    ] = "cold",
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Passes over the workload.")] = 1,
    concurrency: Annotated[
        str, typer.Option("--concurrency", help="Also measure tokens/s with so many requests in flight, e.g. 1,2,4,8.")
    ] = "",
    turns: Annotated[
        str, typer.Option("--turns", help="first, or all: feed answers back as a conversation.")
    ] = "first",
    raw: Raw = False,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0 is greedy.")] = 0.0,
    seed: Seed = 0,
    cost_curve: Annotated[
        bool, typer.Option("--cost-curve", help="Measure pass times and store them with the engine for the planner.")
    ] = False,
    url: Annotated[
        OptionalText, typer.Option("--url", help="Measure through the server at this gRPC address, host:port.")
    ] = None,
    allow_remote: AllowRemote = False,
    json_path: Annotated[OptionalPath, typer.Option("--json", help="Write everything measured here.")] = None,
) -> None:
    """Measure strategies against plain decoding, alternately and in one process, and check every output."""
    if data is None and not cost_curve:
        raise UserError("Nothing to measure: give a workload with --data FILE.jsonl, or --cost-curve.")
    from pipeline.bench.bench import BenchPlan, Progress, run_bench
    from pipeline.bench.in_process import choose_strategies, codec_of
    from pipeline.bench.measure import MeasureOptions
    from pipeline.bench.results import require_writable, save_json
    from pipeline.bench.workload import load_workload
    from pipeline.decoding.request import SamplingParams

    rows = [] if data is None else load_workload(data, limit, None if tasks is None else _words("--tasks", tasks))
    _one_of("--warm", warm, ("cold", "warm"))
    _one_of("--turns", turns, ("first", "all"))
    if json_path is not None:
        require_writable(json_path)
    _check_url(url, allow_remote)
    levels = _numbers("--concurrency", concurrency)
    artifact = _artifact(model, profile, overrides)
    chosen = choose_strategies(artifact, None if strategies is None else _words("--strategies", strategies))
    codec = codec_of(artifact)
    options = MeasureOptions(
        max_new_tokens=max_new_tokens,
        end_ids=codec.end_ids,
        sampling=SamplingParams(temperature=temperature, seed=seed),
        warmth=cast(Literal["cold", "warm"], warm),
        repeats=repeats,
        turns=cast(Literal["first", "all"], turns),
        raw=raw or not artifact.resolved.model.chat_template,
    )
    plan = BenchPlan(tuple(chosen), tuple(_words("--baselines", baselines)), tuple(levels), cost_curve, url)
    num_turns = sum(len(row.turns) if turns == "all" else 1 for row in rows)
    with output.progress() as bar:
        task = bar.add_task("measuring", total=repeats * num_turns * (len(chosen) + len(plan.baselines)))

        def on_record(record: RequestRecord) -> None:
            bar.update(task, advance=1, description=f"{record.id} {record.strategy}")

        results = run_bench(artifact, codec.tokenizer, rows, plan, options, Progress(on_record, output.note))
    if json_path is not None:
        save_json(json_path, results)
    _show(results)


def verify(
    model: Model = DEFAULT_MODEL,
    profile: Profile = DEFAULT_PROFILE,
    overrides: Set = None,
    strategies: Strategies = None,
    data: Data = None,
    num_prompts: Annotated[OptionalInt, typer.Option("--num-prompts", min=1, help="Only the first so many.")] = None,
    max_new_tokens: MaxNewTokens = 64,
    raw: Raw = False,
    seed: Seed = 0,
    url: Annotated[
        OptionalText,
        typer.Option("--url", help="Compare through the server at this gRPC address too; default: the running one."),
    ] = None,
    server: Annotated[bool, typer.Option("--server/--no-server", help="Whether to compare through a server.")] = True,
    allow_remote: AllowRemote = False,
    as_json: Json = False,
) -> None:
    """Prove that no strategy changes a token: compare with plain decoding, greedy and sampled, alone and in a batch.

    Without --data a dozen prompts of our own are used. Exit code 1 if any difference is not explained by rounding."""
    from pipeline.bench.in_process import choose_strategies, open_in_process
    from pipeline.bench.measure import MeasureOptions
    from pipeline.bench.verify import verify_in_process
    from pipeline.bench.verify_server import verify_server
    from pipeline.bench.workload import DEFAULT_PROMPTS, first_prompts, load_workload
    from pipeline.decoding.request import SamplingParams

    rows = load_workload(data or DEFAULT_PROMPTS, num_prompts)
    if url is not None and not server:
        raise UserError("--url and --no-server contradict each other; leave one out.")
    _check_url(url, allow_remote)
    artifact = _artifact(model, profile, overrides)
    words = None if strategies is None else _words("--strategies", strategies)
    if artifact.resolved.backend == "tensorrt_llm":
        from pipeline.cli.verify_remote import compare_through_server

        address = url or _running_server(artifact)
        _show_comparisons(
            compare_through_server(artifact, address, words, rows, max_new_tokens, raw), artifact, as_json
        )
        return
    chosen = choose_strategies(artifact, words)
    if server and url is None:
        url = _running_server(artifact)
        output.note("no server of this model is running; comparing in process" if url is None else f"server: {url}")
    opened = open_in_process(artifact)
    prompts = first_prompts(opened.tokenizer, rows, raw or not artifact.resolved.model.chat_template)
    options = MeasureOptions(max_new_tokens=max_new_tokens, end_ids=opened.end_ids, sampling=SamplingParams(seed=seed))
    reference, *contenders = [opened.contender(strategy) for strategy in chosen]
    dtype = artifact.resolved.dtype
    with output.progress() as bar:
        task = bar.add_task("comparing", total=2 * len(prompts) * (2 * len(chosen) - 1 + 2 * len(chosen) * bool(url)))

        def on_comparison(comparison: Comparison) -> None:
            bar.update(task, advance=1, description=f"{comparison.prompt_id} {comparison.strategy}")

        comparisons, references = verify_in_process(
            opened.engine, dtype, reference, contenders, prompts, options, on_comparison
        )
        if url is not None:
            comparisons += verify_server(
                url, opened.engine, dtype, references, opened.decode, chosen, prompts, options, on_comparison
            )
    _show_comparisons(comparisons, artifact, as_json)


def load(
    url: Annotated[
        OptionalText, typer.Option("--url", help="gRPC address of the server, host:port; default: the running one.")
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, max=1024, help="Clients.")] = 4,
    duration: Annotated[float, typer.Option("--duration", min=0.1, help="Seconds in which requests are sent.")] = 30.0,
    max_requests: Annotated[OptionalInt, typer.Option("--max-requests", min=1, help="End after so many.")] = None,
    rate: Annotated[
        OptionalFloat, typer.Option("--rate", min=0.01, help="Most requests per second over all clients.")
    ] = None,
    data: Data = None,
    strategies: Annotated[
        OptionalText, typer.Option("--strategies", help="Strategies in turn; default: what the server's profile says.")
    ] = None,
    max_new_tokens: MaxNewTokens = 64,
    raw: Raw = False,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0 is greedy.")] = 0.0,
    seed: Seed = 0,
    allow_remote: AllowRemote = False,
    as_json: Json = False,
) -> None:
    """Put a running server under load, a request per client at a time, and report latencies and errors.

    Exit code 1 if a request failed, or did not end within half a minute after the duration."""
    from pipeline.bench.load import LoadPlan, run_load, summary_of
    from pipeline.bench.remote import Ask, generate
    from pipeline.bench.workload import DEFAULT_PROMPTS, Prompt, load_workload
    from pipeline.decoding.request import SamplingParams

    rows = load_workload(data or DEFAULT_PROMPTS)
    target = url or _running_server()
    if target is None:
        raise ServerError("No server is running. Start one with `lookahead serve`, or name one with --url host:port.")
    _check_url(target, allow_remote)
    names: list[str | None] = [None] if strategies is None else [*_words("--strategies", strategies)]
    sampling = SamplingParams(temperature=temperature, seed=seed)
    asks = [Ask(Prompt(row.turns[:1], raw), max_new_tokens, name, sampling) for row in rows for name in names]
    plan = LoadPlan(concurrency, duration, max_requests, rate)
    with output.progress() as bar:
        task = bar.add_task("sending", total=max_requests)

        def on_answer(result: LoadResult) -> None:
            bar.update(task, advance=1, description=f"{result.num_requests} done, {sum(result.errors.values())} errors")

        summary = summary_of(run_load(lambda ask, timeout_s: generate(target, ask, timeout_s), asks, plan, on_answer))
    if as_json:
        output.print_json({"url": target, "concurrency": concurrency, **summary})
    else:
        output.table(["figure", "value"], [(name, _shown(value)) for name, value in summary.items()])
    if summary["errors"]:
        raise typer.Exit(1)


def report(
    results: Annotated[Path, typer.Argument(help="What `lookahead bench --json` wrote.")],
    html: Annotated[OptionalPath, typer.Option("--html", help="Write one HTML file with tables and plots.")] = None,
    markdown: Annotated[OptionalPath, typer.Option("--markdown", help="Write Markdown.")] = None,
) -> None:
    """Turn bench results into a report; without --html and --markdown, Markdown on stdout."""
    from pipeline.bench.report import html_of, markdown_of
    from pipeline.bench.results import load_results, save_text

    loaded = load_results(results)
    if html is not None:
        save_text(html, html_of(loaded))
        output.note(f"wrote {html}")
    if markdown is not None:
        save_text(markdown, markdown_of(loaded))
        output.note(f"wrote {markdown}")
    if html is None and markdown is None:
        output.say(markdown_of(loaded))


def _artifact(model: str, profile: str, overrides: list[str] | None) -> Artifact:
    """The engine, built if it is not there."""
    resolved = resolve(model, profile, overrides)
    from pipeline.config.places import places
    from pipeline.tuning.planned_engine import planned_engine

    return planned_engine(resolved, places(), note=output.note).artifact


def _show(results: BenchResults) -> None:
    from pipeline.bench.report import sections_of

    for section in sections_of(results):
        if section.is_measured and section.table is not None:
            output.table(section.table.columns, section.table.rows, section.title)
    if results.summary:
        from pipeline.bench.report import headline

        output.say(headline(results))


def _show_comparisons(comparisons: list[Comparison], artifact: Artifact, as_json: bool) -> None:
    from dataclasses import asdict

    from pipeline.bench.verify import is_lossless, verdict_sentence, verdict_table

    lossless = is_lossless(comparisons)
    if as_json:
        output.print_json(
            {
                "lossless": lossless,
                "fingerprint": artifact.manifest.fingerprint_digest,
                "dtype": artifact.resolved.dtype,
                "comparisons": [asdict(comparison) for comparison in comparisons],
            }
        )
    else:
        columns, rows = verdict_table(comparisons)
        output.table(columns, rows)
        for comparison in comparisons:
            if comparison.verdict != "identical":
                output.say(verdict_sentence(comparison))
        near_ties = sum(comparison.verdict == "near_tie" for comparison in comparisons)
        yes = f"yes, up to rounding: {near_ties} near-ties, no fault" if near_ties else "yes"
        output.say(f"lossless: {yes if lossless else 'NO, see the differences above'}")
    if not lossless:
        raise typer.Exit(1)


def _running_server(artifact: Artifact | None = None) -> str | None:
    """gRPC address of the server that `lookahead serve` has started, if any; with an artefact, if it serves that."""
    from pipeline.config.places import places
    from pipeline.serving.road import run_dir
    from pipeline.serving.server import find_server

    state = find_server(run_dir(places()))
    if state is None:
        return None
    wanted = None if artifact is None else (artifact.manifest.model, artifact.manifest.profile)
    return state.grpc_url if wanted in (None, (state.model, state.profile)) else None


def _check_url(url: str | None, allow_remote: bool) -> None:
    if url is not None:
        from pipeline.bench.remote import check_address

        check_address(url, allow_remote)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {entry}" for name, entry in value.items()) or "-"
    return "-" if value is None else str(value)


def _words(option: str, text: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if len(set(words)) != len(words):
        raise UserError(f"{option} names one thing twice: {text!r}.")
    return words


def _numbers(option: str, text: str) -> list[int]:
    words = _words(option, text)
    if not all(word.isdecimal() and int(word) for word in words):
        raise UserError(f"{option} takes numbers from 1 on, separated by commas; found {text!r}.")
    return [int(word) for word in words]


def _one_of(option: str, word: str, known: tuple[str, ...]) -> None:
    if word not in known:
        raise UserError(f"{option} is {word!r}; it must be {' or '.join(known)}.")
