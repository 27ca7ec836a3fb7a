"""Request records -> figures per task and strategy, with an interval for the speedup.

Acceptance length is generated tokens / steps over all requests; tokens/s is generated tokens / seconds. The time of a
prompt is its median over repeats. The speedup against the baseline is the ratio of tokens/s over the same prompts. Its
95% interval comes from a bootstrap over prompts and, within a prompt, repeats. Baseline and strategy of the same prompt
and repeat, which ran one after the other, are drawn together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.bench.report.results import OVERALL, RequestRecord, SummaryRow

NUM_RESAMPLES = 1000
Seconds = npt.NDArray[np.float64]


class Interval(NamedTuple):
    """A 95% bootstrap interval of a ratio."""

    low: float
    high: float


def summarize(records: Sequence[RequestRecord], baseline: str = "none") -> list[SummaryRow]:
    """Return rows per task and then overall, within each per strategy; tasks and strategies in order of appearance."""
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
    """Ratio of tokens/s over the common prompts and repeats, and its interval. Both are None without common prompts;
    the interval is None for a single pair."""
    ours, theirs = ({(record.id, record.repeat): record for record in records} for records in (own, base))
    pairs: dict[str, list[tuple[RequestRecord, RequestRecord]]] = {}
    for (prompt, repeat), record in ours.items():
        if (prompt, repeat) in theirs:
            pairs.setdefault(prompt, []).append((record, theirs[prompt, repeat]))
    if not pairs:
        return None, None
    # Outputs are normally identical. If lengths differ, each side's tokens count for its own time.
    num_tokens = [sum(len(pair[side].output_ids) for group in pairs.values() for pair in group) for side in (0, 1)]
    token_ratio = _ratio(*num_tokens)
    times = [np.array([(mine.seconds, theirs.seconds) for mine, theirs in group]) for group in pairs.values()]
    own_seconds, base_seconds = sum(np.median(repeats, axis=0) for repeats in times)
    speedup = token_ratio * float(base_seconds / own_seconds)
    if max(len(times), *map(len, times)) < 2:
        return speedup, None
    random = np.random.default_rng(seed)
    draws = np.stack([_draws(repeats, random) for repeats in times], axis=1)
    chosen = random.integers(0, len(times), (NUM_RESAMPLES, len(times)))
    totals = draws[np.arange(NUM_RESAMPLES)[:, None], chosen].sum(axis=1)
    low, high = np.percentile(token_ratio * totals[:, 1] / totals[:, 0], [2.5, 97.5])
    return speedup, Interval(float(low), float(high))


def _draws(repeats: Seconds, random: np.random.Generator) -> Seconds:
    """[NUM_RESAMPLES, 2] medians of rows of repeats [repeats, 2] drawn with replacement."""
    drawn = random.integers(0, len(repeats), (NUM_RESAMPLES, len(repeats)))
    medians: Seconds = np.median(repeats[drawn], axis=1)
    return medians


def _tokens_per_s(records: Sequence[RequestRecord]) -> float:
    """Tokens/s over prompts, each with its mean tokens and its median time."""
    groups: dict[str, list[RequestRecord]] = {}
    for record in records:
        groups.setdefault(record.id, []).append(record)
    tokens = sum(float(np.mean([len(record.output_ids) for record in group])) for group in groups.values())
    seconds = sum(float(np.median([record.seconds for record in group])) for group in groups.values())
    return _ratio(tokens, seconds)


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0
