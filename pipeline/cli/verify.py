"""The verb that proves that drafts change no token: verify."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli import output
from pipeline.cli.lists import words
from pipeline.cli.measuring import (
    AllowRemote,
    Data,
    MaxNewTokens,
    Raw,
    Seed,
    Strategies,
    built_artifact,
    check_url,
    running_server,
)
from pipeline.cli.options import DEFAULT_MODEL, DEFAULT_PROFILE, Json, Model, Profile, Set
from pipeline.errors import ServerError, UserError

if TYPE_CHECKING:
    from pipeline.bench.verify import Comparison
    from pipeline.bench.workload import WorkloadRow
    from pipeline.config.schema import Dtype
    from pipeline.engine.artifact import Artifact
    from pipeline.engine.contract import Engine


def register(app: typer.Typer) -> None:
    app.command()(verify)


def verify(
    model: Model = DEFAULT_MODEL,
    profile: Profile = DEFAULT_PROFILE,
    overrides: Set = None,
    strategies: Strategies = None,
    data: Data = None,
    num_prompts: Annotated[int | None, typer.Option("--num-prompts", min=1, help="Only the first N.")] = None,
    max_new_tokens: MaxNewTokens = 64,
    raw: Raw = False,
    seed: Seed = 0,
    url: Annotated[
        str | None,
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
    check_url(url, allow_remote)
    artifact = built_artifact(model, profile, overrides)
    names = None if strategies is None else words("--strategies", strategies)
    if artifact.resolved.backend == "tensorrt_llm":
        address = url or running_server(artifact)
        _show_comparisons(
            _compare_through_server(artifact, address, names, rows, max_new_tokens, raw), artifact, as_json
        )
        return
    chosen = choose_strategies(artifact, names)
    if server and url is None:
        url = running_server(artifact)
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


def _compare_through_server(
    artifact: Artifact,
    url: str | None,
    strategies: Sequence[str] | None,
    rows: Sequence[WorkloadRow],
    max_new_tokens: int,
    raw: bool,
) -> list[Comparison]:
    """All comparisons. Raises ServerError if no server was found."""
    from pipeline.bench.in_process import codec_of
    from pipeline.bench.measure import MeasureOptions
    from pipeline.bench.verify_remote import judging_config, remote_strategies, verify_remote
    from pipeline.bench.workload import first_prompts

    if url is None:
        raise ServerError(
            "This engine runs in a server only, and none of it is running. Start it with `lookahead serve "
            f"--model {artifact.manifest.model} --profile {artifact.manifest.profile} --background`."
        )
    chosen = remote_strategies(artifact.resolved, strategies)
    codec = codec_of(artifact)
    prompts = first_prompts(codec.tokenizer, rows, raw or not artifact.resolved.model.chat_template)
    options = MeasureOptions(max_new_tokens=max_new_tokens, end_ids=codec.end_ids)

    @cache
    def judge() -> tuple[Engine, Dtype]:
        import torch

        from pipeline.config.places import places
        from pipeline.engine.build import build_engine
        from pipeline.engine.torch.load import load_engine

        output.note("two outputs differ: looking at the scores with our torch engine")
        resolved = judging_config(artifact.resolved, torch.cuda.is_available())
        return load_engine(build_engine(resolved, places(), note=output.note).artifact), artifact.resolved.dtype

    output.note(f"server: {url}; greedy outputs only, as this backend's sampling depends on the steps of a request")
    with output.progress() as bar:
        num_pairs = len(prompts) * (2 * len(chosen) - 1)
        task = bar.add_task("comparing", total=num_pairs)
        return verify_remote(url, judge, chosen, prompts, options, lambda comparison: bar.update(task, advance=1))


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
