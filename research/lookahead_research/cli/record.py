"""The command record, which stores a model's most probable tokens for replays without the model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lookahead_research.cli.options import MOST_DRAFT_TOKENS, Outputs
from pipeline.cli import options as shared
from pipeline.cli import output


def record(
    outputs: Outputs,
    out: Annotated[Path, typer.Option("--out", help="Output file of rows. An existing file is extended.")],
    model: shared.Model = shared.DEFAULT_MODEL,
    profile: shared.Profile = shared.DEFAULT_PROFILE,
    overrides: shared.Set = None,
    budget: Annotated[str, typer.Option("--budget", help="Draft tokens per step, such as 64,8.")] = "64,32,8",
    width: Annotated[int, typer.Option("--width", help="Candidates per row.", min=1, max=256)] = 32,
    limit: Annotated[int | None, shared.limit_to("rows")] = None,
) -> None:
    """Record the model's candidates after known outputs and after the drafts of hybrid, for `replay --rows`."""
    from dataclasses import replace

    from lookahead_research.known_outputs import load_replay_rows, require_room, require_vocabulary
    from lookahead_research.recorded_rows import RecordedRows, find_rows, save_rows
    from lookahead_research.recording import LiveRows, text_rows
    from lookahead_research.replay import replay
    from pipeline.bench.contenders.in_process import open_in_process
    from pipeline.bench.report.results import require_writable
    from pipeline.decoding.drafting.first_rows import NO_FIRST_ROWS
    from pipeline.engine.first_rows import load_first_rows

    budgets = shared.numbers("--budget", budget, MOST_DRAFT_TOKENS)
    require_writable(out, outputs)
    rows = load_replay_rows(outputs)[:limit]
    texts = [row.text for row in rows]
    earlier = find_rows(out, texts)[0] if out.is_file() else [None] * len(texts)
    artifact = shared.built_artifact(shared.resolve(model, profile, overrides))
    engine = open_in_process(artifact).engine
    require_vocabulary(rows, engine.limits.vocab_size)
    require_room(rows, max(budgets), engine.limits.max_seq_len)
    stored = load_first_rows(artifact)
    first_rows = NO_FIRST_ROWS if stored is None else stored.rows
    with output.steps("recording", len(rows) * (1 + len(budgets))) as step:
        recorded = []
        for text, rows_of_text in zip(texts, earlier, strict=True):
            recorded.append(rows_of_text or RecordedRows(text, *text_rows(engine, text, width)))
            step("outputs")
        live = [replace(row, target=LiveRows(each, engine)) for row, each in zip(rows, recorded, strict=True)]
        replay(
            live, "hybrid", budgets, ["warm"], on_row=lambda: step("drafts"), max_draft_len=32, first_rows=first_rows
        )
    save_rows(out, recorded, first_rows)
    output.say(f"{sum(each.num_rows for each in recorded)} rows of {len(rows)} outputs are in {out}")
