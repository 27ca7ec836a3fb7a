"""The command replay, which measures drafts on known outputs without a model."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lookahead_research.cli.options import MOST_DRAFT_TOKENS, Outputs
from pipeline.cli import output
from pipeline.cli.options import limit_to, numbers, output_file, words
from pipeline.errors import UserError

if TYPE_CHECKING:
    from lookahead_research.recorded_rows import RecordedRows
    from lookahead_research.replay import ReplayResult

# Sources that learn from rows of the model.
READERS_OF_ROWS = {"recycling", "pool"}


def replay(
    outputs: Outputs,
    source: Annotated[
        str,
        typer.Option(
            "--source",
            help="hybrid, or trie, prompt, pool, recycling, supplied; a+b for one tree, a,b for two runs.",
        ),
    ] = "trie",
    budget: Annotated[str, typer.Option("--budget", help="Draft tokens per step, such as 16,32,64.")] = "16,64",
    regime: Annotated[str, typer.Option("--regime", help="cold, warm, prewarmed, or a list of them.")] = "cold,warm",
    branch_length: Annotated[
        int, typer.Option("--branch-length", help="Tokens stored per branch.", min=1, max=64)
    ] = 12,
    max_draft_len: Annotated[int, typer.Option("--max-draft-len", help="Longest drafted path.", min=1, max=256)] = 32,
    rows_path: Annotated[
        Path | None,
        typer.Option(
            "--rows", help="File of `research record`, with rows of the model for hybrid, recycling and pool."
        ),
    ] = None,
    limit: Annotated[int | None, limit_to("rows")] = None,
    json_path: Annotated[Path | None, output_file("--json", what="Output file in JSON")] = None,
) -> None:
    """Count the verify steps of known outputs with a draft source.

    Regimes: cold begins each row without learned state, warm keeps it over the rows of a dataset, prewarmed begins with
    the state learned from all other rows.
    """
    from functools import partial

    from lookahead_research.known_outputs import load_replay_rows
    from lookahead_research.recorded_rows import load_rows
    from lookahead_research.replay import REGIMES, source_parts
    from lookahead_research.replay import replay as run_replay
    from pipeline.bench.report.results import require_writable, save_rows
    from pipeline.config.schema import TrieDraftConfig
    from pipeline.decoding.drafting.first_rows import NO_FIRST_ROWS
    from pipeline.decoding.warm_up import warm_up

    budgets = numbers("--budget", budget, MOST_DRAFT_TOKENS)
    regimes = words("--regime", regime, REGIMES)
    sources = words("--source", source)
    parts = {part for name in sources for part in source_parts(name)}
    if rows_path is not None and not parts & READERS_OF_ROWS:
        raise UserError(f"--rows has no effect on --source {source}; it is for hybrid, recycling and pool.")
    if json_path is not None:
        require_writable(json_path, outputs, rows_path)
    rows = load_replay_rows(outputs)[:limit]
    recorded: list[RecordedRows] = []
    first_rows = NO_FIRST_ROWS
    if rows_path is not None:
        recorded, first_rows = load_rows(rows_path, [row.text for row in rows])
        rows = [replace(row, target=each) for row, each in zip(rows, recorded, strict=True)]
    results: list[ReplayResult] = []
    warm_up()  # loads compiled code, for which the first proposal would take milliseconds more than others
    with output.progress() as bar:
        for name in sources:
            task = bar.add_task(f"replay {name}", total=len(rows) * len(budgets) * len(regimes))
            results += run_replay(
                rows,
                name,
                budgets,
                regimes,
                TrieDraftConfig(branch_length=branch_length),
                partial(bar.advance, task),
                max_draft_len=max_draft_len,
                first_rows=first_rows,
            )
    if json_path is not None:
        save_rows(json_path, [asdict(result) for result in results])
    output.records(
        {
            "source": row.source,
            "budget": row.budget,
            "regime": row.regime,
            "task": row.task,
            "tokens": row.tokens,
            "steps": row.steps,
            "acceptance length": f"{row.mean_acceptance_length:.3f}",
            "drafts/step": f"{row.draft_tokens_per_step:.1f}",
            "retrieval us p50": f"{row.retrieval_us_p50:.0f}",
            "p99": f"{row.retrieval_us_p99:.0f}",
        }
        for row in results
    )
    if recorded:
        known, asked = sum(each.known for each in recorded), sum(each.asked for each in recorded)
        output.note(f"{known / max(asked, 1):.1%} of the {asked} rows that the sources read were recorded")
    elif parts & READERS_OF_ROWS:
        output.note(
            "without --rows hybrid, recycling and pool learn nothing from the model, and need more steps than with it; "
            "`lookahead research record` makes the rows"
        )
