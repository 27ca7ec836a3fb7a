"""The time of a step over recorded outputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from lookahead_research.step_time import measure_step_time

from pipeline.decoding.drafting.first_rows import NO_FIRST_ROWS
from pipeline.errors import UserError
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


def test_rows_of_another_engine_are_refused() -> None:
    row, other = known_outputs(2)
    other = replace(other, output_ids=np.append(other.output_ids[:5], [3, 3, 3]).astype(np.int32))
    files = recorded([row, other], TableEngine())
    with pytest.raises(UserError, match=r"Token 6 of output 2 is not the most probable one.* must be greedy"):
        measure_step_time([row, other], files, NO_FIRST_ROWS, budget=4, batch_size=2, repeats=1)
