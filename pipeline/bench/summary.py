"""Request records -> figures per task and strategy, with an interval for the speedup.

Acceptance length is generated tokens / steps over all requests, tokens/s generated tokens / seconds. Where a prompt ran
several times its median time counts, so that one hiccup of the machine does not decide. The speedup against the
baseline is the ratio of tokens/s over the same prompts; its 95% interval comes from a bootstrap that draws prompts
and, within a prompt, repeats (paired: baseline and strategy of the same prompt are drawn together).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.bench.results import OVERALL, RequestRecord, SummaryRow

NUM_RESAMPLES = 1000
Seconds = npt.NDArray[np.float64]


class Interval(NamedTuple):
    low: float
    high: float


def summarise(records: Sequence[RequestRecord], baseline: str = "none") -> list[SummaryRow]:
    """Rows per task (in order of appearance) and then overall; within each, strategies in order of appearance."""
    tasks = list(dict.fromkeys(record.task for record in records))
    strategies = list(dict.fromkeys(record.strategy for record in records))
    scopes = [(task, [record for record in records if record.task == task]) for task in tasks]
    scopes.append((OVERALL, list(records)))
    rows = []
    for task, scope in scopes:
        base = [record for record in scope if record.strategy == baseline]
        for strategy in strategies:
            own = [record for record in scope if record.strategy == strategy]
            if own:
                rows.append(_summary_row(task, strategy, own, base))
    return rows


def _summary_row(task: str, strategy: str, own: Sequence[RequestRecord], base: Sequence[RequestRecord]) -> SummaryRow:
    steps = sum(record.steps for record in own)
    drafted = sum(record.draft_tokens for record in own)
    seconds = sum(record.seconds for record in own)
    draft_seconds = sum(record.draft_seconds for record in own)
    tokens = sum(len(record.output_ids) for record in own)
    speedup, interval = speedup_of(own, base)
    return SummaryRow(
        task=task,
        strategy=strategy,
        num_prompts=len({record.id for record in own}),
        num_requests=len(own),
        output_tokens=tokens,
        steps=steps,
        acceptance_length=_ratio(tokens, steps),
        tokens_per_s=_tokens_per_s(own),
        speedup=speedup,
        speedup_low=interval.low if interval else None,
        speedup_high=interval.high if interval else None,
        draft_tokens_per_step=_ratio(drafted, steps),
        acceptance_rate=_ratio(sum(record.accepted_tokens for record in own), drafted),
        ttft_ms=1000 * float(np.median([record.ttft_s for record in own])),
        draft_ms_per_step=1000 * _ratio(draft_seconds, steps),
        draft_share=_ratio(draft_seconds, seconds),
        num_identical=sum(record.identical for record in own),
    )


def speedup_of(
    own: Sequence[RequestRecord], base: Sequence[RequestRecord], seed: int = 0
) -> tuple[float | None, Interval | None]:
    """Ratio of tokens/s over the prompts that both have, and its interval; None where there is nothing to compare, and
    no interval from a single pair."""
    ours, theirs = _by_prompt(own), _by_prompt(base)
    prompts = [prompt for prompt in ours if prompt in theirs]
    if not prompts:
        return None, None
    # Outputs are normally identical; where one differs in length its own tokens count for its own time.
    token_ratio = _ratio(sum(_tokens(ours[p]) for p in prompts), sum(_tokens(theirs[p]) for p in prompts))
    own_times = [np.array([record.seconds for record in ours[p]]) for p in prompts]
    base_times = [np.array([record.seconds for record in theirs[p]]) for p in prompts]
    own_medians = np.array([np.median(times) for times in own_times])
    base_medians = np.array([np.median(times) for times in base_times])
    speedup = token_ratio * float(base_medians.sum() / own_medians.sum())
    if max(len(prompts), *(len(times) for times in own_times)) < 2:
        return speedup, None
    random = np.random.default_rng(seed)
    own_draws, base_draws = _draws(own_times, random), _draws(base_times, random)
    chosen = random.integers(0, len(prompts), (NUM_RESAMPLES, len(prompts)))
    rows = np.arange(NUM_RESAMPLES)[:, None]
    ratios = token_ratio * base_draws[rows, chosen].sum(1) / own_draws[rows, chosen].sum(1)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return speedup, Interval(float(low), float(high))


def _draws(times: Iterable[Seconds], random: np.random.Generator) -> Seconds:
    """[NUM_RESAMPLES, prompts] median time of each prompt over repeats drawn with replacement."""
    columns = [
        np.median(repeats[random.integers(0, len(repeats), (NUM_RESAMPLES, len(repeats)))], axis=1) for repeats in times
    ]
    return np.stack(columns, axis=1)


def _by_prompt(records: Iterable[RequestRecord]) -> dict[str, list[RequestRecord]]:
    groups: dict[str, list[RequestRecord]] = {}
    for record in records:
        groups.setdefault(record.id, []).append(record)
    return groups


def _tokens(records: Sequence[RequestRecord]) -> float:
    return float(np.mean([len(record.output_ids) for record in records]))


def _tokens_per_s(records: Sequence[RequestRecord]) -> float:
    groups = _by_prompt(records).values()
    seconds = sum(float(np.median([record.seconds for record in group])) for group in groups)
    return _ratio(sum(map(_tokens, groups)), seconds)


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0
