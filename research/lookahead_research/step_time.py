"""Measures the processor time of a step without the model's pass: drafting, planning, accepting, learning,
scheduling."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lookahead_research.known_outputs import ReplayRow
from lookahead_research.recorded_engine import RecordedEngine
from lookahead_research.recorded_rows import RecordedRows
from lookahead_research.replay import ANY_VOCABULARY
from pipeline.config.rules import LOOKAHEAD_OFF
from pipeline.config.schema import RecyclingDraftConfig, SuppliedDraftConfig, TrieDraftConfig
from pipeline.decoding.drafting.drafter_factory import create_drafter
from pipeline.decoding.drafting.first_rows import FirstRows
from pipeline.decoding.planning.planner import FixedPlanner
from pipeline.decoding.request import GenerationRequest
from pipeline.decoding.sources.base import DraftBudget
from pipeline.engine.contract import EngineLimits
from pipeline.engine.scheduler import Scheduler
from pipeline.engine.submission import Submission
from pipeline.errors import UserError

SOURCES = (TrieDraftConfig(), RecyclingDraftConfig(), SuppliedDraftConfig())
MAX_DEPTH = 32


@dataclass(frozen=True, slots=True)
class StepTime:
    """Time of steps without their passes. budget: draft tokens per step. batch_size: sequences in flight. steps: total
    of all sequences. ms: processor time per sequence and step, the minimum of several repeats."""

    budget: int
    batch_size: int
    steps: int
    tokens_per_step: float
    ms: float


def measure_step_time(
    rows: Sequence[ReplayRow],
    recorded: Sequence[RecordedRows],
    first_rows: FirstRows,
    budget: int,
    batch_size: int,
    repeats: int = 3,
) -> StepTime:
    """Serve known outputs under `hybrid` with a scheduler over a `RecordedEngine`. Raises UserError if the rows are of
    another engine than the outputs."""
    _check_outputs(rows, recorded)
    times: list[float] = []
    tokens = steps = 0
    for _ in range(repeats):
        longest = max(len(row.text) for row in rows) + budget
        limits = EngineLimits(batch_size, longest, batch_size * (budget + longest), budget, ANY_VOCABULARY)
        engine = RecordedEngine(recorded, [len(row.prompt_ids) for row in rows], limits)
        drafter = create_drafter(SOURCES, LOOKAHEAD_OFF, ANY_VOCABULARY)
        drafter.begin_with(first_rows)
        scheduler = Scheduler(
            engine,
            drafter,
            FixedPlanner(),
            default_budget=DraftBudget(budget, MAX_DEPTH),
            max_queue_size=len(rows),
            prefill_chunk=longest,
        )
        submissions = [
            Submission(GenerationRequest(f"{index}", row.prompt_ids, max_new_tokens=len(row.output_ids)), "hybrid")
            for index, row in enumerate(rows)
        ]
        started = time.process_time()
        results = scheduler.run(submissions)
        seconds = time.process_time() - started - engine.seconds
        drafter.require_sound()
        steps = sum(result.statistics.num_steps for result in results)
        tokens = sum(len(result.output_ids) for result in results)
        times.append(seconds / steps)
    return StepTime(budget, batch_size, steps, tokens / steps, 1e3 * min(times))


def _check_outputs(rows: Sequence[ReplayRow], recorded: Sequence[RecordedRows]) -> None:
    for number, (row, own) in enumerate(zip(rows, recorded, strict=True), 1):
        best, _ = own.rows(np.arange(len(row.prompt_ids), len(own.text)) - 1, 1)
        if (other := np.flatnonzero(best[:, 0] != row.output_ids)).size:
            raise UserError(
                f"Token {other[0] + 1} of output {number} is not the most probable one of the recorded rows. Record "
                "rows with the model, dtype and quantization of the outputs, which must be greedy (temperature 0)."
            )
