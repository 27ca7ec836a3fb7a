"""Finds the fastest draft budget and the fastest W, N, G for a model on this machine.

All candidates within the engine's limits are measured in turn with plain decoding over the same prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from pipeline.bench.contenders.contender import Contender, SchedulerContender
from pipeline.bench.contenders.in_process import BASELINE, InProcess
from pipeline.bench.data.workload import WorkloadRow
from pipeline.bench.measure import MeasureOptions, measure
from pipeline.bench.report.results import OVERALL, RequestRecord, SummaryRow
from pipeline.bench.report.summary import summarize
from pipeline.bench.verify.verify import epsilon_of
from pipeline.config.schema import LookaheadConfig, ResolvedConfig
from pipeline.engine.scheduler_factory import create_scheduler
from pipeline.errors import UserError

BUDGETS = (4, 8, 12, 16, 24, 32, 48, 64)
# From small windows, for machines where every token of a pass takes time, to the paper's for an A100 (arXiv 2402.02057
# table 4).
LOOKAHEADS = ((1, 3, 2), (2, 3, 3), (3, 3, 3), (4, 3, 4), (5, 4, 5), (7, 5, 7), (10, 5, 10), (15, 5, 15))


class Candidate(NamedTuple):
    """One setting of one strategy. max_draft_tokens: for "hybrid". lookahead: for "lookahead"."""

    name: str
    strategy: str
    max_draft_tokens: int | None = None
    lookahead: LookaheadConfig | None = None


def candidates(resolved: ResolvedConfig) -> list[Candidate]:
    """The draft budgets and W, N, G to measure, within the limits of an engine of this config. Raises UserError if
    there are none."""
    room = resolved.profile.engine.max_draft_tokens
    kinds = {source.kind for source in resolved.profile.drafting.sources}
    found = [Candidate(f"budget {size}", "hybrid", size) for size in BUDGETS if size <= room and kinds]
    for w, n, g in LOOKAHEADS:
        config = LookaheadConfig.of(w, n, g, origin="lookahead tune")
        if "window" in kinds and config.max_draft_len <= room:
            found.append(Candidate(f"W,N,G {w},{n},{g}", "lookahead", lookahead=config))
    if not found:
        raise UserError(
            f"Profile {resolved.profile.name} leaves nothing to tune: engine.max_draft_tokens is {room} and "
            f"drafting.sources has {', '.join(sorted(kinds)) or 'no sources'}. Raise the limit, or add a source."
        )
    return found


def with_candidate(resolved: ResolvedConfig, candidate: Candidate) -> ResolvedConfig:
    """The config of a candidate, with the fixed planner, which uses the whole budget."""
    settings: dict[str, object] = {"planner": "fixed"}
    if candidate.max_draft_tokens is not None:
        settings["max_draft_tokens"] = candidate.max_draft_tokens
    if candidate.lookahead is not None:
        settings["max_draft_tokens"] = settings["max_draft_len"] = resolved.profile.engine.max_draft_tokens
    changed = resolved.with_settings("drafting", **settings)
    return changed.model_copy(update={"lookahead": candidate.lookahead or resolved.lookahead})


def tune(
    opened: InProcess,
    chosen: Sequence[Candidate],
    rows: Sequence[WorkloadRow],
    options: MeasureOptions,
    on_record: Callable[[RequestRecord], None] = lambda record: None,
) -> list[SummaryRow]:
    """Return the figures of plain decoding and of each candidate over all prompts, in this order. Raises UserError if a
    candidate changes a token and passes of the engine do not round differently."""
    contenders: list[Contender] = [opened.contender(BASELINE), *(_contender(opened, each) for each in chosen)]
    records = measure(contenders, rows, opened.codec, options, on_record)
    different = sorted({record.strategy for record in records if not record.identical})
    if different and not epsilon_of(opened.artifact):
        raise UserError(f"{', '.join(different)} changed tokens; run `lookahead verify` and report its output.")
    return [row for row in summarize(records, BASELINE) if row.task == OVERALL]


def winners(chosen: Sequence[Candidate], rows: Sequence[SummaryRow]) -> tuple[int | None, LookaheadConfig | None]:
    """The draft budget and the window of the fastest candidates, None if none is faster than plain decoding: its whole
    interval must be above 1, or its speedup if it was measured once. A candidate of which no draft was accepted is
    faster by chance only."""
    by_name = {each.name: each for each in chosen}
    drafting = [row for row in rows if row.strategy in by_name and row.acceptance_length > 1]
    faster = [row for row in drafting if (row.speedup_low or row.speedup or 0.0) > 1]
    ranked = [by_name[row.strategy] for row in sorted(faster, key=lambda row: row.speedup or 0.0, reverse=True)]
    budgets = [each.max_draft_tokens for each in ranked if each.max_draft_tokens is not None]
    windows = [each.lookahead for each in ranked if each.lookahead is not None]
    return next(iter(budgets), None), next(iter(windows), None)


def _contender(opened: InProcess, candidate: Candidate) -> SchedulerContender:
    artifact = replace(opened.artifact, resolved=with_candidate(opened.artifact.resolved, candidate))
    create = partial(create_scheduler, artifact, opened.engine)
    return SchedulerContender(candidate.strategy, create, candidate.name)
