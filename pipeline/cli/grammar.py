"""Grammar options of the commands bench and verify."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pipeline.cli import output
from pipeline.errors import UserError

if TYPE_CHECKING:
    from pipeline.bench.contenders.in_process import InProcess
    from pipeline.bench.data.workload import WorkloadRow
    from pipeline.bench.measure import MeasureOptions
    from pipeline.decoding.grammar.guide import Guide
    from pipeline.engine.artifact import Artifact

_KINDS = {".json": "json_schema", ".lark": "ebnf_grammar", ".gbnf": "ebnf_grammar", ".regex": "regex"}


def guide_file(path: Path) -> Guide:
    """Read a guide from a file; the suffix gives its kind. Raises UserError if it cannot be read or the suffix is
    unknown."""
    from pipeline.decoding.grammar.guide import Guide
    from pipeline.json_lines import reading

    kind = _KINDS.get(path.suffix)
    if kind is None:
        raise UserError(f"--grammar {path} ends in {path.suffix!r}; it must end in one of {', '.join(_KINDS)}.")
    with reading(path):
        text = path.read_text(encoding="utf-8")
    return Guide(kind, text.rstrip("\n") if kind == "regex" else text)


def bench_schemas(
    artifact: Artifact,
    rows: Sequence[WorkloadRow],
    chosen: Sequence[str],
    options: MeasureOptions,
    json_path: Path | None,
) -> None:
    """Measure JSON schemas with and without drafts and grammar. Raises typer.Exit with code 1 if an output is wrong."""
    from pipeline.bench.contenders.in_process import open_in_process
    from pipeline.bench.grammar import is_sound, measure_schemas, summary_table, verdict
    from pipeline.bench.report.results import save_rows

    opened = open_in_process(artifact)
    options = replace(options, end_ids=opened.end_ids)
    with output.steps("measuring", options.repeats * 2 * len(chosen) * len(rows)) as step:
        records = measure_schemas(opened, rows, chosen, options, lambda record: step(f"{record.id} {record.strategy}"))
    if json_path is not None:
        save_rows(json_path, [record.model_dump() for record in records])
    output.table(*summary_table(records))
    output.say(verdict(records))
    if not is_sound(records):
        raise typer.Exit(1)


def require_matching(
    guide: Guide, opened: InProcess, references: Mapping[tuple[str, str], Sequence[int]]
) -> tuple[int, int]:
    """Check that the finished reference outputs match a JSON schema. references: by prompt and decoding; all other
    outputs were compared with them. Returns the numbers of finished and of all outputs. Raises typer.Exit with code 1
    if one does not match."""
    import json

    from pipeline.bench.grammar import matches

    finished = [ids for ids in references.values() if ids and ids[-1] in opened.end_ids]
    wrong = [
        opened.decode(ids)
        for ids in finished
        if guide.kind == "json_schema" and not matches(json.loads(guide.text), opened.decode(ids))
    ]
    for text in wrong:
        output.note(f"does not match the schema: {text}")
    if wrong:
        raise typer.Exit(1)
    return len(finished), len(references)
