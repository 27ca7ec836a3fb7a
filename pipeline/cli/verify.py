"""The command `verify`, which proves that drafts change no token."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli import options as shared
from pipeline.cli import output
from pipeline.config.folders import folders
from pipeline.errors import UserError

if TYPE_CHECKING:
    from pipeline.cli.verify_engine import Compared
    from pipeline.decoding.grammar.guide import Guide
    from pipeline.engine.artifact import Artifact

# Number of prompts and tokens with --quick.
QUICK_PROMPTS, QUICK_TOKENS = 3, 24
# Options that have an effect with --failover.
_OF_FAILOVER = {"failover", "model", "profile", "overrides", "num_kills", "max_new_tokens", "as_json"}
# Kind of guide by the suffix of its file.
_KINDS = {".json": "json_schema", ".lark": "ebnf_grammar", ".gbnf": "ebnf_grammar", ".regex": "regex"}


def verify(
    context: typer.Context,
    model: shared.Model = shared.DEFAULT_MODEL,
    profile: shared.Profile = shared.DEFAULT_PROFILE,
    overrides: shared.Set = None,
    strategies: shared.Strategies = None,
    data: shared.Data = None,
    limit: Annotated[int | None, shared.limit_to("prompts")] = None,
    max_new_tokens: shared.MaxNewTokens = 64,
    quick: Annotated[
        bool, typer.Option("--quick", help="Compare three prompts of 24 tokens; takes about a minute.")
    ] = False,
    raw: shared.Raw = False,
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
    seed: shared.Seed = 0,
    url: Annotated[
        str | None,
        typer.Option("--url", help="gRPC address of a server to compare as well; default: the running one."),
    ] = None,
    server: Annotated[
        bool, typer.Option("--server/--no-server", help="Also compare through a server, or only in process.")
    ] = True,
    allow_remote: shared.AllowRemote = False,
    failover: Annotated[
        bool,
        typer.Option(
            "--failover",
            help="Start a fleet, kill its workers and servers, and compare the clients' outputs. No other check runs.",
        ),
    ] = False,
    num_kills: Annotated[int, typer.Option("--kills", min=1, help="Number of kills with --failover.")] = 20,
    as_json: shared.Json = False,
) -> None:
    """Prove that no strategy changes a token: compare with plain decoding, greedy and sampled, alone and in a batch.

    Exit code 1 if rounding does not explain a difference.
    """
    if failover:
        shared.refuse_given(context, shared.given(context).keys() - _OF_FAILOVER, "with --failover")
    resolved = shared.resolve(model, profile, overrides)
    if failover:
        from pipeline.cli.failover import run_failover

        run_failover(resolved, folders(), num_kills, max_new_tokens, as_json)
        return

    from pipeline.bench.contenders.in_process import choose_strategies
    from pipeline.bench.data.workload import DEFAULT_PROMPTS, load_workload
    from pipeline.bench.measure import MeasureOptions
    from pipeline.decoding.request import SamplingParams
    from pipeline.decoding.strategy import STRATEGIES
    from pipeline.engine.backend import backend_of

    shared.refuse_given(context, {"num_kills"}, "without --failover")
    if quick:
        limit, max_new_tokens = limit or QUICK_PROMPTS, min(max_new_tokens, QUICK_TOKENS)
    if url is not None and not server:
        raise UserError("--url and --no-server contradict each other; leave one out.")
    if url is not None and grammar is not None:
        raise UserError("--grammar compares in process; leave out --url.")
    rows = load_workload(data or DEFAULT_PROMPTS, limit)
    shared.check_url(url, allow_remote, resolved)
    names = None if strategies is None else shared.words("--strategies", strategies, STRATEGIES)
    in_process = backend_of(resolved.backend).in_process
    chosen = choose_strategies(resolved.profile, names) if in_process else []
    for option, is_set in (("--logits", logits), ("--grammar", grammar is not None)):
        if is_set:
            shared.require_in_process(resolved, option)
    options = MeasureOptions(
        max_new_tokens=max_new_tokens,
        sampling=SamplingParams(seed=seed),
        raw=raw or not resolved.model.chat_template,
        guide=None if grammar is None else guide_file(grammar),
    )
    artifact = shared.built_artifact(resolved)

    from pipeline.cli.verify_engine import agreement_of, compare_in_process, compare_through_server, server_of

    if not in_process:
        found = compare_through_server(artifact, url or server_of(artifact), names, rows, options)
    else:
        if server and url is None and grammar is None:
            url = server_of(artifact)
            output.note("no server of this model is running; comparing in process" if url is None else f"server: {url}")
        found = compare_in_process(artifact, url, chosen, rows, options, logits)
    _show_comparisons(found, artifact, as_json, agreement_of(artifact, found.outputs) if reference else None)


def guide_file(path: Path) -> Guide:
    """Read a guide from a file; the suffix gives its kind. Raises UserError if it cannot be read or the suffix is
    unknown."""
    from pipeline.decoding.grammar.guide import Guide
    from pipeline.json_lines import reading

    kind = _KINDS.get(path.suffix)
    if kind is None:
        raise UserError(f"--grammar {path} ends in {path.suffix!r}; it must end in one of {', '.join(_KINDS)}.")
    with reading(path):
        text = path.read_text(encoding="utf-8")
    return Guide(kind, text.rstrip("\n") if kind == "regex" else text)


def _show_comparisons(found: Compared, artifact: Artifact, as_json: bool, share: float | None) -> None:
    """Print the results. share: agreement with transformers, if computed. Raises typer.Exit with code 1 if one is
    wrong."""
    from dataclasses import asdict

    from pipeline.bench.verify.reference import LEAST_AGREEMENT, disagreement_sentence
    from pipeline.bench.verify.verify import is_lossless, verdict_sentence, verdict_table

    comparisons, lossless = found.comparisons, is_lossless(found.comparisons)
    agrees = share is None or share >= LEAST_AGREEMENT
    if as_json:
        output.print_json(
            {
                "lossless": lossless,
                "agreement": share,
                "fingerprint": artifact.manifest.fingerprint_digest,
                "dtype": artifact.resolved.dtype,
                "comparisons": [asdict(comparison) for comparison in comparisons],
                "mismatches": found.mismatches,
            }
        )
    else:
        output.records(verdict_table(comparisons))
        for comparison in comparisons:
            if comparison.verdict != "identical":
                output.say(verdict_sentence(comparison))
        near_ties = sum(comparison.verdict == "near_tie" for comparison in comparisons)
        yes = f"yes, up to rounding: {near_ties} near-ties, not a bug" if near_ties else "yes"
        output.say(f"lossless: {yes if lossless else 'NO, see the differences above'}")
        if share is not None:
            output.say(f"agreement with transformers: {share:.0%}" if agrees else disagreement_sentence(share))
        for text in found.mismatches:
            output.say(f"does not match the schema: {text}")
    if not (lossless and agrees) or found.mismatches:
        raise typer.Exit(1)
