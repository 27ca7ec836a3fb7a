"""The time of a step over recorded outputs."""

from __future__ import annotations

from lookahead_research.step_time import measure_step_time

from pipeline.decoding.first_rows import NO_FIRST_ROWS
from tests.fakes import TableEngine
from tests.unit.research.test_recording import known_outputs, recorded


def test_a_step_is_timed_over_the_outputs_that_were_recorded() -> None:
    rows = known_outputs(3)
    files = recorded(rows, TableEngine())
    found = measure_step_time(rows, files, NO_FIRST_ROWS, budget=4, batch_size=2, repeats=1)
    assert (found.budget, found.batch_size) == (4, 2)
    assert found.steps < sum(len(row.output_ids) for row in rows)
    assert found.tokens_per_step * found.steps == sum(len(row.output_ids) for row in rows)
    assert 0 < found.ms < 1000
