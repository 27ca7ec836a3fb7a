"""Contenders over the table engine, and engines with a fault."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.bench.contenders.contender import SchedulerContender
from pipeline.decoding.drafter import Drafter
from pipeline.decoding.planner import FixedPlanner
from pipeline.decoding.sources.base import DraftBudget
from pipeline.engine.contract import EngineLimits, VerifyItem
from pipeline.engine.scheduler import Scheduler
from tests.fakes import VOCAB_SIZE, HostileSource, TableEngine, TableLogits

LIMITS = EngineLimits(4, 256, 128, 64, VOCAB_SIZE)


def contender_over(engine: TableEngine, strategy: str) -> SchedulerContender:
    """A strategy whose drafts come from a hostile source: mostly right, sometimes broken."""

    def create() -> Scheduler:
        drafter = Drafter([HostileSource()], VOCAB_SIZE)
        budget = DraftBudget(8, 4)
        return Scheduler(
            engine, drafter, planner=FixedPlanner(), default_budget=budget, max_queue_size=64, prefill_chunk=32
        )

    return SchedulerContender(strategy, create, lambda: None)


class LyingEngine(TableEngine):
    """Wrong behind draft nodes: there the second best token gets `error` more. tie: distance of the second best to the
    best token everywhere, None for what the table says."""

    def __init__(self, error: float, tie: float | None = None) -> None:
        super().__init__()
        self._error = error
        self._tie = tie

    def verify(self, items: Sequence[VerifyItem]) -> list[TableLogits | None]:
        results = super().verify(items)
        for logits in results:
            for index, row in enumerate([] if logits is None else logits.rows):
                second, best = np.argsort(row)[-2:]
                if self._tie is not None:
                    row[second] = row[best] - self._tie
                if index:
                    row[second] += self._error
        return results
