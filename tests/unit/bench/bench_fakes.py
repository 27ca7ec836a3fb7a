"""Prompts, contenders over the table engine, and engines with a fault."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.bench.contenders.contender import SchedulerContender
from pipeline.bench.data.workload import NamedPrompt, Prompt
from pipeline.engine.contract import Engine, VerifyItem
from tests.fakes import TableEngine, TableLogits, make_scheduler

PROMPTS = [NamedPrompt(f"p{i}", np.asarray([i + 1, i + 2, 3], np.int32), Prompt(("text",))) for i in range(3)]


def contender_over(engine: Engine, strategy: str) -> SchedulerContender:
    """A strategy whose drafts come from a hostile source: mostly right, sometimes broken."""
    return SchedulerContender(strategy, lambda: make_scheduler(engine=engine, budget=(8, 4), prefill_chunk=32))


class LyingEngine(TableEngine):
    """Wrong after draft nodes: there the second best token gets `error` more. tie: distance of the second best to the
    best token everywhere, None for that of the table."""

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
