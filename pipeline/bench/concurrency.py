"""Throughput in process: closed loop with a fixed number of requests in flight."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pipeline.bench.contenders.contender import SchedulerContender
from pipeline.bench.data.workload import NamedPrompt
from pipeline.bench.measure import MeasureOptions, make_request, rotated
from pipeline.bench.report.results import ConcurrencyRow
from pipeline.engine.submission import GenerationResult


class ClosedLoop(NamedTuple):
    """One run over a workload. results: in the order of the prompts."""

    seconds: float
    results: list[GenerationResult]

    @property
    def outputs(self) -> list[list[int]]:
        return [result.output_ids for result in self.results]


def measure_concurrency(
    contenders: Sequence[SchedulerContender],
    prompts: Sequence[NamedPrompt],
    levels: Sequence[int],
    options: MeasureOptions,
    on_run: Callable[[int, str], None] = lambda level, strategy: None,
) -> list[ConcurrencyRow]:
    """Return one row per level and contender, with medians over repeats.

    Draft sources are emptied before each run. In a cold measurement each request also has its own namespace, so that it
    cannot draft from the others through the trie. The first contender is the baseline: speedups are relative to it at
    the same level, and outputs are compared with its outputs at level 1."""
    reference = _run(contenders[0], prompts, 1, options).outputs
    runs: dict[tuple[int, str], list[ClosedLoop]] = {}
    for repeat in range(options.repeats):
        for turn, level in enumerate(levels):
            for index in rotated(len(contenders), repeat + turn):
                contender = contenders[index]
                on_run(level, contender.name)
                runs.setdefault((level, contender.name), []).append(_run(contender, prompts, level, options))
    return [
        _row(level, contender.name, runs[level, contender.name], runs[level, contenders[0].name], reference)
        for level in levels
        for contender in contenders
    ]


def _run(
    contender: SchedulerContender, prompts: Sequence[NamedPrompt], concurrency: int, options: MeasureOptions
) -> ClosedLoop:
    contender.forget()
    contender.scheduler.engine.forget_cached()
    submissions = [
        contender.submission(
            make_request(options, prompt.prompt_ids, prompt.prompt_id if options.warmth == "cold" else "")
        )
        for prompt in prompts
    ]
    started = time.perf_counter()
    results = contender.scheduler.run(submissions, concurrency)
    return ClosedLoop(time.perf_counter() - started, results)


def _row(
    level: int, strategy: str, own: Sequence[ClosedLoop], base: Sequence[ClosedLoop], reference: list[list[int]]
) -> ConcurrencyRow:
    speed, base_speed = _tokens_per_s(own), _tokens_per_s(base)
    statistics = [result.statistics for run in own for result in run.results]
    ttft_p50_ms, ttft_p95_ms = np.percentile([1000 * each.time_to_first_token_s for each in statistics], [50, 95])
    return ConcurrencyRow(
        concurrency=level,
        strategy=strategy,
        tokens_per_s=speed,
        speedup=speed / base_speed,
        acceptance_length=_num_tokens(own) / sum(each.num_steps for each in statistics),
        ttft_p50_ms=float(ttft_p50_ms),
        ttft_p95_ms=float(ttft_p95_ms),
        num_requests=len(statistics),
        num_identical=sum(
            output == expected for run in own for output, expected in zip(run.outputs, reference, strict=True)
        ),
    )


def _tokens_per_s(runs: Sequence[ClosedLoop]) -> float:
    return float(np.median([_num_tokens([run]) / run.seconds for run in runs]))


def _num_tokens(runs: Sequence[ClosedLoop]) -> int:
    return sum(len(output) for run in runs for output in run.outputs)
