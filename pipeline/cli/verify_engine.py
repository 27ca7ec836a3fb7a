"""The comparisons of `lookahead verify`, in process and through a server."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from pipeline.bench.bench import check_lengths
from pipeline.bench.contenders.in_process import InProcess, codec_of, open_in_process
from pipeline.bench.contenders.remote import require_server_of
from pipeline.bench.data.workload import WorkloadRow, first_prompts
from pipeline.bench.grammar import fault_of, matches
from pipeline.bench.measure import MeasureOptions
from pipeline.bench.verify.reference import agreement, load_reference
from pipeline.bench.verify.remote import judging_config, remote_strategies, verify_remote, verify_server
from pipeline.bench.verify.verify import Comparison, epsilon_of, verify_in_process
from pipeline.cli import output
from pipeline.cli.options import running_server
from pipeline.config.folders import folders
from pipeline.decoding.grammar.guide import Guide
from pipeline.decoding.tree import IntArray
from pipeline.engine.artifact import Artifact
from pipeline.engine.build import build_engine
from pipeline.engine.contract import Engine
from pipeline.engine.torch.lean.plan import read_plan
from pipeline.engine.torch.load import load_engine
from pipeline.errors import ServerError, UserError
from pipeline.repository.model_config import read
from pipeline.repository.names import CONFIG, FINGERPRINT, FRONT_MODEL

# Greedy outputs of plain decoding: tokens of prompt and output.
Outputs = Iterable[tuple[IntArray, Sequence[int]]]


class Compared(NamedTuple):
    """Results of all comparisons. mismatches: finished outputs that do not match the JSON schema of the guide."""

    comparisons: list[Comparison]
    outputs: Outputs
    mismatches: list[str]


def server_of(artifact: Artifact) -> str | None:
    """gRPC address of the server that `lookahead serve` started; None if it does not serve this artifact. Raises
    UserError if it serves another build of the artifact."""
    state, manifest = running_server(), artifact.manifest
    if state is None or (state.model, state.profile) != (manifest.model, manifest.profile):
        return None
    front = read(Path(state.repository, FRONT_MODEL, CONFIG))
    if front.parameters[FINGERPRINT].string_value != manifest.fingerprint_digest:
        raise UserError(
            f"The running server has an older build of {manifest.model} than {artifact.folder}. Restart it with "
            "`lookahead stop` and `lookahead serve`, or compare in process with --no-server."
        )
    return state.grpc_url


def compare_in_process(
    artifact: Artifact,
    url: str | None,
    strategies: Sequence[str],
    rows: Sequence[WorkloadRow],
    options: MeasureOptions,
    logits: bool,
) -> Compared:
    """Run all comparisons in process, and with url also those through that server. logits: also compare the bits of the
    logits in process. Raises UserError if the engine has no lean pass, which that needs."""
    if logits and read_plan(artifact.engine_dir) is None:
        raise UserError(
            f"--logits needs an engine with the lean pass (docs/architectures.md). transformers computes "
            f"{artifact.manifest.model} in {artifact.resolved.dtype}, and its rounding depends on the number of rows. "
            "Leave out --logits."
        )
    opened = open_in_process(artifact)
    engine, options = opened.engine, replace(options, end_ids=opened.end_ids)
    check_lengths(opened.codec, rows, engine.limits.max_seq_len - 1, options)
    prompts = first_prompts(opened.codec, rows, options.raw)
    if url is not None:
        require_server_of(url, prompts[0])  # first, because comparing in process takes minutes
    # Also where drafts do not pay: what is not verified proves nothing.
    reference, *contenders = [opened.contender(strategy, always_drafts=True) for strategy in strategies]
    epsilon = epsilon_of(artifact)
    num_passes = len(strategies) * (2 + (0 if url is None else 2) + logits) - 1
    with output.steps("comparing", 2 * len(prompts) * num_passes) as step:

        def on_comparison(comparison: Comparison) -> None:
            step(f"{comparison.prompt_id} {comparison.strategy}")

        comparisons, references = verify_in_process(
            engine, epsilon, reference, contenders, prompts, options, on_comparison, logits
        )
        if url is not None:
            comparisons += verify_server(
                url, lambda: (engine, epsilon), references, opened.decode, strategies, prompts, options, on_comparison
            )
    outputs = ((prompt.prompt_ids, references[prompt.prompt_id, "greedy"]) for prompt in prompts)
    return Compared(comparisons, outputs, _mismatches(options.guide, opened, references) if options.guide else [])


def _mismatches(guide: Guide, opened: InProcess, references: Mapping[tuple[str, str], Sequence[int]]) -> list[str]:
    """The finished reference outputs that do not match a JSON schema; those of other guides are not checked.
    references: by prompt and decoding; all other outputs were compared with them."""
    finished = [opened.decode(ids) for ids in references.values() if ids and ids[-1] in opened.end_ids]
    schema = json.loads(guide.text) if guide.kind == "json_schema" else None
    fault = "" if schema is None else fault_of(schema)
    wrong = [text for text in finished if schema is not None and not fault and not matches(schema, text)]
    how = "" if schema is None else f", and {len(finished) - len(wrong)} of them match the schema"
    if fault:
        how = f", and are not checked again ({fault})"
    output.note(f"grammar: {len(finished)} outputs finished{how}, {len(references) - len(finished)} were cut by length")
    return wrong


def agreement_of(artifact: Artifact, outputs: Outputs) -> float:
    """Share of the tokens of greedy outputs that transformers would choose too."""
    output.note("comparing with transformers and the checkpoint's weights")
    return agreement(load_reference(artifact.resolved, folders()), outputs)


def compare_through_server(
    artifact: Artifact,
    url: str | None,
    strategies: Sequence[str] | None,
    rows: Sequence[WorkloadRow],
    options: MeasureOptions,
) -> Compared:
    """As `compare_in_process`, with all comparisons through a server. Raises ServerError if there is none."""
    if url is None:
        raise ServerError(
            "This engine runs only in a server, and no server runs it. Start it with `lookahead serve "
            f"--model {artifact.manifest.model} --profile {artifact.manifest.profile} --background`."
        )
    chosen = remote_strategies(artifact.resolved, strategies)
    codec = codec_of(artifact)
    prompts = first_prompts(codec, rows, options.raw)
    options = replace(options, end_ids=codec.end_ids)

    @cache
    def judge() -> tuple[Engine, float]:
        output.note("two outputs differ: computing their logits with the torch engine")
        resolved = judging_config(artifact.resolved, torch.cuda.is_available())
        engine = load_engine(build_engine(resolved, folders(), note=output.note).artifact)
        return engine, epsilon_of(artifact)

    output.note(f"server: {url}; greedy outputs only, as this backend's sampling depends on the steps of a request")
    with output.steps("comparing", len(prompts) * (2 * len(chosen) - 1)) as step:
        comparisons, found = verify_remote(url, judge, chosen, prompts, options, lambda comparison: step("comparing"))
    return Compared(comparisons, ((prompt.prompt_ids, found[prompt.prompt_id]) for prompt in prompts), [])
