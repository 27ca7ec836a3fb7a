"""Runs `lookahead bench`: creates contenders, measures them in process or through a server, and summarizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pipeline.bench.concurrency import measure_concurrency
from pipeline.bench.contenders.baselines import BASELINES, load_baselines
from pipeline.bench.contenders.contender import Contender, SchedulerContender
from pipeline.bench.contenders.in_process import codec_of, open_in_process
from pipeline.bench.contenders.llama_cpp import LLAMA_CPP_BASELINES, check_llama_cpp, load_llama_cpp
from pipeline.bench.contenders.remote import RemoteContender
from pipeline.bench.data.workload import Prompt, WorkloadRow, first_prompts, prompt_ids_of
from pipeline.bench.measure import MeasureOptions, measure
from pipeline.bench.report.manifest import manifest_of
from pipeline.bench.report.results import BenchResults, ConcurrencyRow, RequestRecord
from pipeline.bench.report.summary import summarize
from pipeline.config.folders import folders
from pipeline.config.schema import ResolvedConfig
from pipeline.config.threads import num_threads
from pipeline.decoding.planning.cost import CostPoint
from pipeline.engine.artifact import Artifact
from pipeline.engine.backend import Note, backend_of
from pipeline.engine.cost_curve import cost_curve_path
from pipeline.engine.machine_load import LoadMeter
from pipeline.engine.traits import TargetTraits
from pipeline.errors import UserError
from pipeline.triton_models.text_codec import TextCodec
from pipeline.tuning.planned_engine import measure_cost_curve

ALL_BASELINES = (*BASELINES, *LLAMA_CPP_BASELINES)


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """Contents of a measurement. strategies: the baseline first. baselines: names from `ALL_BASELINES`. concurrency:
    numbers of requests in flight, may be empty. cost_curve: whether to measure one. url: gRPC address of a
    server, None to measure in process."""

    strategies: tuple[str, ...]
    baselines: tuple[str, ...] = ()
    concurrency: tuple[int, ...] = ()
    cost_curve: bool = False
    url: str | None = None


def check_plan(resolved: ResolvedConfig, plan: BenchPlan, options: MeasureOptions) -> None:
    """Raise UserError for a plan that would fail later or give misleading results. Needs no engine."""
    most = resolved.profile.engine.max_batch_size
    too_many = [level for level in plan.concurrency if level > most]
    if too_many:
        raise UserError(
            f"--concurrency {too_many[0]} does not fit: the engine was built for {most} requests at once. Use "
            f"--set engine.max_batch_size={max(too_many)}, or a profile made for throughput."
        )
    if plan.baselines and not options.sampling.greedy:
        raise UserError("The baselines are greedy; leave out --temperature or --baselines.")
    if set(plan.baselines) & set(BASELINES) and not backend_of(resolved.backend).in_process:
        raise UserError(
            f"The baselines {' and '.join(BASELINES)} load the weights of an engine in process, and those of backend "
            f"{resolved.backend} run in a server only. Leave them out of --baselines, or use --set backend=torch."
        )
    if set(plan.baselines) & set(LLAMA_CPP_BASELINES):
        check_llama_cpp(resolved.model)
    if plan.url is not None and (plan.concurrency or plan.cost_curve):
        option = "--concurrency" if plan.concurrency else "--cost-curve"
        raise UserError(
            f"{option} is measured in process; leave out --url (`lookahead load` puts a server under load)."
        )


def check_lengths(codec: TextCodec, rows: Iterable[WorkloadRow], longest: int, options: MeasureOptions) -> None:
    """Raise UserError if a prompt has more than `longest` tokens. Later turns count without the answers, which are not
    known yet."""
    for row in rows:
        messages: list[str] = []
        for number, turn in enumerate(row.asked(options.turns)):
            messages.append(turn)
            num_tokens = len(prompt_ids_of(codec, Prompt(tuple(messages), options.raw, row.system)))
            if num_tokens > longest:
                which = f"turn {number + 1} of row {row.row_id!r}" if number else f"row {row.row_id!r}"
                raise UserError(
                    f"The prompt of {which} has {num_tokens} tokens{', answers not counted' if number else ''}; the "
                    f"engine takes at most {longest}. Shorten the row or leave it out, or use a larger "
                    "engine.max_seq_len."
                )
            messages.append("")


def longest_prompt(resolved: ResolvedConfig, plan: BenchPlan) -> int:
    """Longest prompt, in tokens, that the models of all strategies accept."""
    return min(traits.longest_prompt for traits in _targets(resolved, plan))


def _targets(resolved: ResolvedConfig, plan: BenchPlan) -> list[TargetTraits]:
    """The served models for the strategies."""
    targets = backend_of(resolved.backend).traits(resolved)
    wanted = set(plan.strategies)
    return [traits for traits in targets if "auto" in wanted or traits.strategies & wanted] or [*targets]


def num_requests(rows: Sequence[WorkloadRow], plan: BenchPlan, options: MeasureOptions) -> int:
    """Number of requests that `run_bench` records; requests of the concurrency levels are not recorded."""
    num_turns = sum(len(row.asked(options.turns)) for row in rows)
    return options.repeats * num_turns * (len(plan.strategies) + len(plan.baselines))


def run_bench(
    artifact: Artifact,
    rows: Sequence[WorkloadRow],
    plan: BenchPlan,
    options: MeasureOptions,
    on_record: Callable[[RequestRecord], None] = lambda record: None,
    note: Note = lambda text: None,
) -> BenchResults:
    """Measure a plan that `check_plan` accepts and return the results. A cost curve is also stored beside the artifact.
    Raises UserError for a prompt that is too long."""
    codec = codec_of(artifact)
    options = replace(options, end_ids=codec.end_ids)
    check_lengths(codec, rows, longest_prompt(artifact.resolved, plan), options)
    records: list[RequestRecord] = []
    concurrency: list[ConcurrencyRow] = []
    points: list[CostPoint] = []
    meter = LoadMeter() if plan.url is None else None  # a server counts as another program
    in_process: list[SchedulerContender] = []
    if plan.cost_curve:
        stored = measure_cost_curve(artifact, note)
        note(f"cost curve: {cost_curve_path(artifact)}, {stored.to_text()}")
        points = [*stored.points]
    if rows and plan.url is None:
        opened = open_in_process(artifact)
        in_process = [opened.contender(strategy) for strategy in plan.strategies]
    if rows:
        remote = [] if plan.url is None else [RemoteContender(strategy, plan.url) for strategy in plan.strategies]
        contenders: list[Contender] = [*in_process, *remote, *_baselines(artifact, plan)]
        records = measure(contenders, rows, codec, options, on_record)
    if rows and plan.concurrency:
        concurrency = measure_concurrency(
            in_process,
            first_prompts(codec, rows, options.raw),
            plan.concurrency,
            options,
            lambda level, strategy: note(f"{strategy}, requests in flight: {level}"),
        )
    return BenchResults(
        manifest=manifest_of(artifact, config_of(artifact, plan, options)),
        requests=records,
        summary=summarize(records, plan.strategies[0]),
        concurrency=concurrency,
        cost_curve=points,
        warmth=options.warmth,
        baseline=plan.strategies[0],
        load=None if meter is None else meter.read(),
    )


def config_of(artifact: Artifact, plan: BenchPlan, options: MeasureOptions) -> dict[str, Any]:
    """Settings of a measurement for its manifest, as JSON values."""
    resolved = artifact.resolved
    return {
        "model": resolved.model.name,
        "profile": resolved.profile.name,
        "backend": resolved.backend,
        "device": resolved.device,
        "dtype": resolved.dtype,
        **{key: list(value) if isinstance(value, tuple) else value for key, value in asdict(plan).items()},
        "max_new_tokens": options.max_new_tokens,
        "end_ids": sorted(options.end_ids),
        "temperature": options.sampling.temperature,
        "seed": options.sampling.seed,
        "warmth": options.warmth,
        "repeats": options.repeats,
        "turns": options.turns,
        "raw": options.raw,
    }


def _baselines(artifact: Artifact, plan: BenchPlan) -> list[Contender]:
    resolved, engine = artifact.resolved, artifact.resolved.profile.engine
    max_seq_len = min(traits.max_seq_len for traits in _targets(resolved, plan))
    found: list[Contender] = []
    if names := [name for name in plan.baselines if name in BASELINES]:
        where = (artifact.engine_dir, resolved.dtype, resolved.device)
        found += load_baselines(names, *where, max_seq_len, engine.quantization)
    if names := [name for name in plan.baselines if name in LLAMA_CPP_BASELINES]:
        threads = num_threads(resolved.profile.server.replicas)
        found += load_llama_cpp(names, resolved.model, folders().cache, max_seq_len, threads)
    return found
