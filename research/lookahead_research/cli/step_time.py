"""The command step-time, which measures the processor time of a step without the model's pass."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lookahead_research.cli.options import MOST_DRAFT_TOKENS, Outputs
from pipeline.cli import output
from pipeline.cli.options import limit_to, numbers


def step_time(
    outputs: Outputs,
    rows_path: Annotated[Path, typer.Option("--rows", help="File of `research record` for the same outputs.")],
    budget: Annotated[str, typer.Option("--budget", help="Draft tokens per step, such as 8,32.")] = "8,32,64",
    batch: Annotated[str, typer.Option("--batch", help="Numbers of sequences in flight, such as 1,8.")] = "1,8",
    limit: Annotated[int | None, limit_to("rows")] = None,
) -> None:
    """Measure the processor time of a step of hybrid per sequence, without the model's pass."""
    from lookahead_research.known_outputs import load_replay_rows
    from lookahead_research.recorded_rows import load_rows
    from lookahead_research.step_time import measure_step_time

    budgets, batches = numbers("--budget", budget, MOST_DRAFT_TOKENS), numbers("--batch", batch, 256)
    rows = load_replay_rows(outputs)[:limit]
    recorded, first_rows = load_rows(rows_path, [row.text for row in rows])
    found = [measure_step_time(rows, recorded, first_rows, nodes, size) for size in batches for nodes in budgets]
    output.table(
        ["batch", "budget", "steps", "tokens/step", "ms/step without the pass"],
        [(row.batch_size, row.budget, row.steps, f"{row.tokens_per_step:.3f}", f"{row.ms:.3f}") for row in found],
    )
