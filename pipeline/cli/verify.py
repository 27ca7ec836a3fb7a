"""The command `verify`, which proves that drafts change no token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli import output
from pipeline.cli.grammar import guide_file, require_matching
from pipeline.cli.list_options import words
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
    built_artifact,
    check_url,
    given,
    refuse_given,
    require_in_process,
    resolve,
)
from pipeline.config.places import places
from pipeline.errors import ServerError, UserError

if TYPE_CHECKING:
    from pipeline.bench.data.workload import WorkloadRow
    from pipeline.bench.verify.verify import Comparison
    from pipeline.decoding.tree import IntArray
    from pipeline.engine.artifact import Artifact
    from pipeline.engine.contract import Engine

    # Prompt and output tokens of each prompt.
    Outputs = Iterable[tuple[IntArray, list[int]]]

# Number of prompts and tokens with --quick.
QUICK_PROMPTS, QUICK_TOKENS = 3, 24
# Options that have an effect with --failover.
_OF_FAILOVER = {"failover", "model", "profile", "overrides", "num_kills", "max_new_tokens", "as_json"}


def register(app: typer.Typer) -> None:
    app.command()(verify)


def verify(
    context: typer.Context,
    model: Model = DEFAULT_MODEL,
    profile: Profile = DEFAULT_PROFILE,
    overrides: Set = None,
    strategies: Strategies = None,
    data: Data = None,
    num_prompts: Annotated[int | None, typer.Option("--num-prompts", min=1, help="Only the first N prompts.")] = None,
    max_new_tokens: MaxNewTokens = 64,
    quick: Annotated[
        bool, typer.Option("--quick", help="Compare three prompts of 24 tokens; takes about a minute.")
    ] = False,
    raw: Raw = False,
    grammar: Annotated[
        Path | None,
        typer.Option("--grammar", help="Grammar that all outputs must match: .json (schema), .lark, .gbnf or .regex."),
    ] = None,
    logits: Annotated[
        bool, typer.Option("--logits", help="Also compare the bits of the logits (engines with the lean pass).")
    ] = False,
    reference: Annotated[
        bool,
        typer.Option("--reference", help="Also compare greedy outputs with transformers and the checkpoint's weights."),
    ] = False,
    seed: Seed = 0,
    url: Annotated[
        str | None,
        typer.Option("--url", help="gRPC address of a server to compare as well; default: the running one."),
    ] = None,
    server: Annotated[
        bool, typer.Option("--server/--no-server", help="Also compare through a server, or only in process.")
    ] = True,
    allow_remote: AllowRemote = False,
    failover: Annotated[
        bool,
        typer.Option(
            "--failover",
            help="Instead, start a fleet, kill its workers and servers, and compare the outputs of the clients.",
        ),
    ] = False,
    num_kills: Annotated[int, typer.Option("--kills", min=1, help="Number of kills with --failover.")] = 20,
    as_json: Json = False,
) -> None:
    """Prove that no strategy changes a token: compare with plain decoding, greedy and sampled, alone and in a batch.

    Without --data it uses twelve built-in prompts. Exit code 1 if rounding does not explain a difference.
    """
    from pipeline.bench.contenders.in_process import choose_strategies
    from pipeline.bench.data.workload import DEFAULT_PROMPTS, load_workload
    from pipeline.engine.backend import backend_of

    if failover:
        from pipeline.cli.failover import run_failover

        refuse_given(context, given(context).keys() - _OF_FAILOVER, "with --failover")
        run_failover(resolve(model, profile, overrides), places(), num_kills, max_new_tokens, as_json)
        return
    refuse_given(context, {"num_kills"}, "without --failover")
    if quick:
        num_prompts, max_new_tokens = num_prompts or QUICK_PROMPTS, min(max_new_tokens, QUICK_TOKENS)
    rows = load_workload(data or DEFAULT_PROMPTS, num_prompts)
    if url is not None and not server:
        raise UserError("--url and --no-server contradict each other; leave one out.")
    resolved = resolve(model, profile, overrides)
    check_url(url, allow_remote, resolved)
    names = None if strategies is None else words("--strategies", strategies)
    in_process = backend_of(resolved.backend).in_process
    chosen = choose_strategies(resolved.profile, names) if in_process else []
    for option, is_set in (("--logits", logits), ("--grammar", grammar is not None)):
        if is_set:
            require_in_process(resolved, option)
    artifact = built_artifact(resolved)
    if not in_process:
        address = url or _server_of(artifact)
        comparisons, outputs = _compare_through_server(artifact, address, names, rows, max_new_tokens, raw)
    else:
        if logits:
            _require_same_bits(artifact)
        if grammar is not None:
            if url is not None:
                raise UserError("--grammar compares in process; leave out --url.")
            server = False
        if server and url is None:
            url = _server_of(artifact)
            output.note("no server of this model is running; comparing in process" if url is None else f"server: {url}")
        comparisons, outputs = _compare_in_process(
            artifact, url, chosen, rows, max_new_tokens, raw, seed, grammar, logits
        )
    _show_comparisons(comparisons, artifact, as_json, _agreement(artifact, outputs) if reference else None)


def _server_of(artifact: Artifact) -> str | None:
    """gRPC address of the server that `lookahead serve` started; None if it does not serve this artifact. Raises
    UserError if it serves another build of the artifact."""
    from pipeline.repository.model_config import read
    from pipeline.repository.names import CONFIG, FINGERPRINT, FRONT_MODEL
    from pipeline.server.startup import run_dir
    from pipeline.server.state import find_server

    state, manifest = find_server(run_dir(places())), artifact.manifest
    if state is None or (state.model, state.profile) != (manifest.model, manifest.profile):
        return None
    front = read(Path(state.repository, FRONT_MODEL, CONFIG))
    if front.parameters[FINGERPRINT].string_value != manifest.fingerprint_digest:
        raise UserError(
            f"The running server has an older build of {manifest.model} than {artifact.folder}. Restart it with "
            "`lookahead stop` and `lookahead serve`, or compare in process with --no-server."
        )
    return state.grpc_url


def _compare_in_process(
    artifact: Artifact,
    url: str | None,
    strategies: Sequence[str],
    rows: Sequence[WorkloadRow],
    max_new_tokens: int,
    raw: bool,
    seed: int,
    grammar: Path | None,
    logits: bool,
) -> tuple[list[Comparison], Outputs]:
    """Run all comparisons in process, and with url also those through that server. Returns them and the greedy outputs
    of plain decoding. grammar: file with a grammar that all outputs must match. logits: also compare the bits of the
    logits in process."""
    from pipeline.bench.bench import check_lengths
    from pipeline.bench.contenders.in_process import open_in_process
    from pipeline.bench.contenders.remote import require_server_of
    from pipeline.bench.data.workload import first_prompts
    from pipeline.bench.measure import MeasureOptions
    from pipeline.bench.verify.logits import RecordingEngine
    from pipeline.bench.verify.remote import verify_server
    from pipeline.bench.verify.verify import epsilon_of, verify_in_process
    from pipeline.decoding.request import SamplingParams

    opened = open_in_process(artifact)
    recorder = RecordingEngine(opened.engine) if logits else None
    opened.engine = recorder or opened.engine
    raw = raw or not artifact.resolved.model.chat_template
    guide = None if grammar is None else guide_file(grammar)
    sampling = SamplingParams(seed=seed)
    options = MeasureOptions(
        max_new_tokens=max_new_tokens, end_ids=opened.end_ids, sampling=sampling, raw=raw, guide=guide
    )
    check_lengths(opened.codec, rows, opened.engine.limits.max_seq_len - 1, options)
    prompts = first_prompts(opened.codec, rows, raw)
    if url is not None:
        require_server_of(url, prompts[0])  # first, because comparing in process takes minutes
    reference, *contenders = [opened.contender(strategy) for strategy in strategies]
    epsilon = epsilon_of(artifact.resolved.dtype, _has_same_bits(artifact))
    num_passes = 2 * len(strategies) - 1 + (0 if url is None else 2 * len(strategies))
    num_passes += len(strategies) if logits else 0
    with output.steps("comparing", 2 * len(prompts) * num_passes) as step:

        def on_comparison(comparison: Comparison) -> None:
            step(f"{comparison.prompt_id} {comparison.strategy}")

        comparisons, references = verify_in_process(
            opened.engine, epsilon, reference, contenders, prompts, options, on_comparison, recorder
        )
        if url is not None:
            comparisons += verify_server(
                url, opened.engine, epsilon, references, opened.decode, strategies, prompts, options, on_comparison
            )
    if guide is not None:
        num_finished, num_outputs = require_matching(guide, opened, references)
        output.say(
            f"grammar: {num_finished} outputs finished and match, {num_outputs - num_finished} were cut by length"
        )
    return comparisons, ((prompt.prompt_ids, references[prompt.prompt_id, "greedy"]) for prompt in prompts)


def _agreement(artifact: Artifact, outputs: Outputs) -> float:
    """Share of the tokens of greedy outputs that transformers would choose too."""
    from pipeline.bench.verify.reference import agreement, load_reference

    output.note("comparing with transformers and the checkpoint's weights")
    return agreement(load_reference(artifact.resolved, places()), outputs)


def _has_same_bits(artifact: Artifact) -> bool:
    """Whether the bits of a row do not depend on the other rows of an engine's pass."""
    from pipeline.engine.torch.lean.plan import read_plan

    return read_plan(artifact.engine_dir) is not None


def _require_same_bits(artifact: Artifact) -> None:
    """Raise UserError if the rows of an engine's pass depend on each other."""
    if not _has_same_bits(artifact):
        raise UserError(
            f"--logits needs an engine with the lean pass (docs/architectures.md). transformers computes "
            f"{artifact.manifest.model} in {artifact.resolved.dtype}, and its rounding depends on the number of rows. "
            "Leave out --logits."
        )


def _compare_through_server(
    artifact: Artifact,
    url: str | None,
    strategies: Sequence[str] | None,
    rows: Sequence[WorkloadRow],
    max_new_tokens: int,
    raw: bool,
) -> tuple[list[Comparison], Outputs]:
    """As `_compare_in_process`, with all comparisons through a server. Raises ServerError if there is none."""
    from pipeline.bench.contenders.in_process import codec_of
    from pipeline.bench.data.workload import first_prompts
    from pipeline.bench.measure import MeasureOptions
    from pipeline.bench.verify.remote import judging_config, remote_strategies, verify_remote
    from pipeline.bench.verify.verify import epsilon_of

    if url is None:
        raise ServerError(
            "This engine runs only in a server, and no server runs it. Start it with `lookahead serve "
            f"--model {artifact.manifest.model} --profile {artifact.manifest.profile} --background`."
        )
    chosen = remote_strategies(artifact.resolved, strategies)
    codec = codec_of(artifact)
    prompts = first_prompts(codec, rows, raw or not artifact.resolved.model.chat_template)
    options = MeasureOptions(max_new_tokens=max_new_tokens, end_ids=codec.end_ids)

    @cache
    def judge() -> tuple[Engine, float]:
        import torch

        from pipeline.engine.build import build_engine
        from pipeline.engine.torch.load import load_engine

        output.note("two outputs differ: computing their logits with the torch engine")
        resolved = judging_config(artifact.resolved, torch.cuda.is_available())
        engine = load_engine(build_engine(resolved, places(), note=output.note).artifact)
        return engine, epsilon_of(artifact.resolved.dtype, same_bits=False)

    output.note(f"server: {url}; greedy outputs only, as this backend's sampling depends on the steps of a request")
    with output.steps("comparing", len(prompts) * (2 * len(chosen) - 1)) as step:
        comparisons, found = verify_remote(url, judge, chosen, prompts, options, lambda comparison: step("comparing"))
    return comparisons, ((prompt.prompt_ids, found[prompt.prompt_id]) for prompt in prompts)


def _show_comparisons(
    comparisons: list[Comparison], artifact: Artifact, as_json: bool, share: float | None = None
) -> None:
    """share: agreement with transformers, if computed."""
    from dataclasses import asdict

    from pipeline.bench.verify.reference import LEAST_AGREEMENT, disagreement_sentence
    from pipeline.bench.verify.verify import is_lossless, verdict_sentence, verdict_table

    lossless = is_lossless(comparisons)
    agrees = share is None or share >= LEAST_AGREEMENT
    if as_json:
        output.print_json(
            {
                "lossless": lossless,
                "agreement": share,
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
        yes = f"yes, up to rounding: {near_ties} near-ties, not a bug" if near_ties else "yes"
        output.say(f"lossless: {yes if lossless else 'NO, see the differences above'}")
        if share is not None:
            output.say(f"agreement with transformers: {share:.0%}" if agrees else disagreement_sentence(share))
    if not (lossless and agrees):
        raise typer.Exit(1)
