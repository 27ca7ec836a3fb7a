"""The verb that measures what a step takes beyond the pass: step-time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli import output
from pipeline.cli.list_options import numbers
from pipeline.cli.options import MOST_DRAFT_TOKENS, Outputs, limit_to


def step_time(
    outputs: Outputs,
    rows_path: Annotated[Path, typer.Option("--rows", help="What `research record` wrote of the same outputs.")],
    budget: Annotated[str, typer.Option("--budget", help="Draft tokens per step; a list such as 8,32.")] = "8,32,64",
    batch: Annotated[str, typer.Option("--batch", help="Sequences in flight; a list such as 1,8.")] = "1,8",
    limit: Annotated[int | None, limit_to("rows")] = None,
) -> None:
    """Processor time of a step of hybrid beyond the model's pass, per sequence."""
    from lookahead_research.known_outputs import load_replay_rows
    from lookahead_research.recorded_rows import load_rows
    from lookahead_research.step_time import measure_step_time

    budgets, batches = numbers("--budget", budget, MOST_DRAFT_TOKENS), numbers("--batch", batch, 256)
    rows = load_replay_rows(outputs)[:limit]
    recorded, first_rows = load_rows(rows_path, [row.text for row in rows])
    found = [measure_step_time(rows, recorded, first_rows, nodes, size) for size in batches for nodes in budgets]
    output.table(
        ["batch", "budget", "steps", "tokens/step", "ms/step beyond the pass"],
        [(row.batch_size, row.budget, row.steps, f"{row.tokens_per_step:.3f}", f"{row.ms:.3f}") for row in found],
    )
