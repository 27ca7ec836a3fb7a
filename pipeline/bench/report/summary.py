"""Request records -> figures per task and strategy, with an interval for the speedup.

Acceptance length is generated tokens / steps over all requests; tokens/s is generated tokens / seconds. A prompt counts
with its medians over repeats. The speedup against the baseline is the ratio of tokens/s over the same prompts. Its 95%
interval comes from a bootstrap over prompts and, within a prompt, repeats. Baseline and strategy of the same prompt and
repeat, which ran one after the other, are drawn together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.bench.report.results import OVERALL, RequestRecord, SummaryRow

NUM_RESAMPLES = 1000
_BASE_TOKENS = 2  # index in the figures of a pair
Figures = npt.NDArray[np.float64]


class Speedup(NamedTuple):
    """A ratio of tokens/s and its 95% interval. All are None without common prompts or tokens of the baseline, the
    interval also for a single pair."""

    value: float | None = None
    low: float | None = None
    high: float | None = None


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
    speedup = speedup_of(own, base)
    return SummaryRow(
        task=task,
        strategy=strategy,
        num_prompts=len({record.id for record in own}),
        num_requests=len(own),
        output_tokens=tokens,
        steps=steps,
        acceptance_length=_ratio(tokens, steps),
        tokens_per_s=_tokens_per_s(own),
        speedup=speedup.value,
        speedup_low=speedup.low,
        speedup_high=speedup.high,
        draft_tokens_per_step=_ratio(drafted, steps),
        acceptance_rate=_ratio(sum(record.accepted_tokens for record in own), drafted),
        ttft_ms=1000 * float(np.median([record.ttft_s for record in own])),
        draft_ms_per_step=1000 * _ratio(draft_seconds, steps),
        draft_share=_ratio(draft_seconds, seconds),
        num_identical=sum(record.identical for record in own),
    )


def speedup_of(own: Sequence[RequestRecord], base: Sequence[RequestRecord]) -> Speedup:
    """The ratio of tokens/s over the common prompts and repeats. Each side's tokens count for its own time, because
    other libraries and 16 bit may end an output earlier."""
    theirs = {(record.id, record.repeat): record for record in base}
    pairs: dict[str, list[tuple[float, ...]]] = {}
    for record in own:
        if (other := theirs.get((record.id, record.repeat))) is not None:
            pairs.setdefault(record.id, []).append((*_figures(record), *_figures(other)))
    if not pairs:
        return Speedup()
    prompts = [np.array(repeats) for repeats in pairs.values()]  # each [repeats, 4]
    total = np.sum([np.median(repeats, axis=0) for repeats in prompts], axis=0)
    if not total[_BASE_TOKENS]:
        return Speedup()
    value = float(_speed_ratio(total))
    if max(len(prompts), *map(len, prompts)) < 2:
        return Speedup(value)
    random = np.random.default_rng(0)
    draws = np.stack([_draws(repeats, random) for repeats in prompts], axis=1)
    chosen = random.integers(0, len(prompts), (NUM_RESAMPLES, len(prompts)))
    totals = draws[np.arange(NUM_RESAMPLES)[:, None], chosen].sum(axis=1)
    totals = totals[totals[:, _BASE_TOKENS] > 0]  # a draw of empty outputs only has no ratio
    low, high = np.percentile(_speed_ratio(totals), [2.5, 97.5])
    return Speedup(value, float(low), float(high))


def _figures(record: RequestRecord) -> tuple[float, float]:
    return len(record.output_ids), record.seconds


def _speed_ratio(figures: Figures) -> Figures:
    """[...] ratio of tokens/s from figures [..., 4]: tokens and seconds of a strategy, then of the baseline."""
    tokens, seconds, base_tokens, base_seconds = np.moveaxis(figures, -1, 0)
    ratio: Figures = tokens * base_seconds / (base_tokens * seconds)
    return ratio


def _draws(repeats: Figures, random: np.random.Generator) -> Figures:
    """[NUM_RESAMPLES, 4] medians of rows of repeats [repeats, 4] drawn with replacement."""
    drawn = random.integers(0, len(repeats), (NUM_RESAMPLES, len(repeats)))
    medians: Figures = np.median(repeats[drawn], axis=1)
    return medians


def _tokens_per_s(records: Sequence[RequestRecord]) -> float:
    """Tokens per second of all prompts together. A prompt has the medians of its repeats."""
    prompts: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        prompts.setdefault(record.id, []).append(_figures(record))
    tokens, seconds = np.sum([np.median(repeats, axis=0) for repeats in prompts.values()], axis=0)
    return _ratio(float(tokens), float(seconds))


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0
