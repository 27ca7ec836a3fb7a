"""Contenders over the table engine, and engines with a fault."""

from __future__ import annotations

import numpy as np

from pipeline.bench.contender import SchedulerContender
from pipeline.decoding.drafter import Drafter
from pipeline.decoding.sources.base import DraftBudget
from pipeline.engine.contract import EngineLimits
from pipeline.engine.scheduler import Scheduler
from tests.fakes import VOCAB_SIZE, HostileSource, TableEngine, TableLogits

LIMITS = EngineLimits(4, 256, 128, 64, VOCAB_SIZE)


def contender_over(engine: TableEngine, strategy: str) -> SchedulerContender:
    """A strategy whose drafts come from a hostile source: mostly right, sometimes broken."""
    drafter = Drafter([HostileSource()], VOCAB_SIZE)
    scheduler = Scheduler(engine, drafter, default_budget=DraftBudget(8, 4), max_queue_size=64, prefill_chunk=32)
    if not hasattr(scheduler, "reset_sources"):
        scheduler.reset_sources = lambda: None  # type: ignore[attr-defined]
    return SchedulerContender(strategy, scheduler, lambda: None)  # type: ignore[arg-type]


class LyingEngine(TableEngine):
    """Wrong behind draft nodes: adds `error` to the second best token there, so that it may win."""

    error = 100.0

    def verify(self, items):  # type: ignore[no-untyped-def]
        results = super().verify(items)
        for item, logits in zip(items, results, strict=True):
            if logits is not None and len(item.tree):
                rows = logits.rows.copy()
                for row in rows[1:]:
                    row[np.argsort(row)[-2]] += self.error
                logits.rows = rows
        return results


class FlatEngine(LyingEngine):
    """The two best tokens always nearly tie: rounding behind draft nodes changes their order."""

    error = 0.02

    def verify(self, items):  # type: ignore[no-untyped-def]
        return super().verify(items)

    def _logits(self, rows: np.ndarray) -> TableLogits:
        return TableLogits(rows)
