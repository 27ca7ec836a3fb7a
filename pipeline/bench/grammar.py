"""Measures structured output: speed with and without a grammar, with and without drafts, and validity of outputs.

Each schema is one row. All contenders run it in rotating order, so that figures are comparable within a row:

    none | none + grammar | hybrid | hybrid + grammar
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from pydantic import Field, ValidationError

from pipeline.bench.contenders.in_process import InProcess
from pipeline.bench.data.workload import Prompt, prompt_ids_of
from pipeline.bench.measure import MeasureOptions, make_request, rotated
from pipeline.bench.report.report import Table
from pipeline.config.schema import Frozen
from pipeline.decoding.grammar.guide import Guide
from pipeline.decoding.request import FinishReason
from pipeline.engine.submission import Submission
from pipeline.errors import UserError
from pipeline.json_lines import json_rows, reading

# Forty schemas: forms, lists, enums, nested objects, free text.
DEFAULT_SCHEMAS = Path(__file__).parent / "data" / "schemas.jsonl"
SYSTEM = "You answer with one JSON value and nothing else."


class SchemaRow(Frozen, extra="ignore"):
    """One entry of a schema file: {"id", "task", "prompt", "schema"}."""

    row_id: str = Field(alias="id", min_length=1)
    task: str = Field(min_length=1)
    prompt: str = Field(min_length=1)
    content: dict[str, Any] = Field(alias="schema")

    @property
    def guide(self) -> Guide:
        return Guide("json_schema", json.dumps(self.content))


@dataclass(frozen=True, slots=True)
class GrammarRecord:
    """One request. guided: whether its schema was the grammar. valid: whether the whole output matches the schema.
    identical: whether it equals the baseline's. seconds: of the request without compiling. compile_s: of compiling the
    grammar, if guided. mask_s, guide_s: of masks, and of cutting and extending drafts. forced_tokens: number of tokens
    without a pass."""

    id: str
    task: str
    strategy: str
    guided: bool
    tokens: int
    steps: int
    seconds: float
    finish_reason: str
    valid: bool
    identical: bool
    compile_s: float
    mask_s: float
    guide_s: float
    forced_tokens: int
    draft_tokens: int
    accepted_tokens: int
    text: str


def load_schemas(path: Path, limit: int | None = None) -> list[SchemaRow]:
    """Read a schema file. Raises UserError with the line of a row that is invalid."""
    rows: list[SchemaRow] = []
    with reading(path), path.open(encoding="utf-8") as lines:
        for where, value in json_rows(lines, path):
            try:
                rows.append(SchemaRow.model_validate(value))
            except ValidationError as error:  # noqa: PERF203  # each fault names its line
                text = f'{where} is not a row of schemas; it must be {{"id", "task", "prompt", "schema": {{...}}}}.'
                raise UserError(text) from error
    if not rows:
        raise UserError(f"{path} has no rows; add at least one.")
    return rows[:limit]


def measure_schemas(
    opened: InProcess,
    rows: Sequence[SchemaRow],
    strategies: Sequence[str],
    options: MeasureOptions,
    on_record: Callable[[GrammarRecord], None] = lambda record: None,
) -> list[GrammarRecord]:
    """Return records in the order of rows. strategies: the baseline first; guided outputs must equal its guided ones.
    options: with warmth "cold", draft sources are emptied before each row."""
    contenders = [(opened.contender(strategy), guided) for strategy in strategies for guided in (False, True)]
    records: list[GrammarRecord] = []
    for index, row in enumerate(rows):
        prompt_ids = prompt_ids_of(opened.codec, Prompt((row.prompt,), options.raw, SYSTEM))
        started = time.perf_counter()
        opened.compiler.matcher(row.guide, options.end_ids).result()
        compile_s = time.perf_counter() - started
        results: dict[tuple[str, bool], tuple[GrammarRecord, list[int]]] = {}
        for place in rotated(len(contenders), index):
            contender, guided = contenders[place]
            if options.warmth == "cold":
                contender.forget()
            contender.forget_cached()
            request = make_request(replace(options, guide=row.guide if guided else None), prompt_ids)
            started = time.perf_counter()
            (result,) = contender.scheduler.run([Submission(request, contender.name)])
            seconds = time.perf_counter() - started
            text, statistics = opened.decode(result.output_ids), result.statistics
            record = GrammarRecord(
                id=row.row_id,
                task=row.task,
                strategy=contender.name,
                guided=guided,
                tokens=len(result.output_ids),
                steps=statistics.num_steps,
                seconds=seconds,
                finish_reason=result.finish_reason.value if result.finish_reason else "",
                valid=matches(row.content, text),
                identical=True,
                compile_s=compile_s if guided else 0.0,
                mask_s=statistics.mask_seconds,
                guide_s=statistics.guide_seconds,
                forced_tokens=statistics.num_forced_tokens,
                draft_tokens=statistics.num_draft_tokens,
                accepted_tokens=statistics.num_accepted_tokens,
                text=text,
            )
            results[contender.name, guided] = record, result.output_ids
        for contender, guided in contenders:
            record, output_ids = results[contender.name, guided]
            expected = results[contenders[0][0].name, guided][1]
            records.append(replace(record, identical=output_ids == expected))
            on_record(records[-1])
    return records


def matches(schema: Any, text: str) -> bool:
    """Whether a text is JSON that the schema permits."""
    try:
        return bool(Draft202012Validator(schema).is_valid(json.loads(text)))
    except ValueError:
        return False


def summary_table(records: Sequence[GrammarRecord]) -> Table:
    """One row per strategy with the grammar, and one without: counts of outputs, speed, and times per step."""
    groups: dict[tuple[str, bool], list[GrammarRecord]] = {}
    for record in records:
        groups.setdefault((record.strategy, record.guided), []).append(record)
    first = records[0].strategy

    def row(strategy: str, guided: bool, group: Sequence[GrammarRecord]) -> dict[str, str]:
        steps, tokens = sum(record.steps for record in group), sum(record.tokens for record in group)
        return {
            "strategy": strategy,
            "grammar": "yes" if guided else "no",
            "outputs": str(len(group)),
            "finished": str(sum(record.finish_reason == FinishReason.END_TOKEN.value for record in group)),
            "valid": str(sum(record.valid for record in group)),
            "identical": str(sum(record.identical for record in group)),
            "tokens": str(tokens),
            "tokens/s": f"{speed(group):.1f}",
            "speedup": f"{speed(group) / speed(groups[first, guided]):.2f}",
            "tokens/step": f"{tokens / steps:.2f}",
            "forced": str(sum(record.forced_tokens for record in group)),
            "ms/step": f"{1000 * sum(record.seconds for record in group) / steps:.1f}",
            "mask ms/step": f"{1000 * sum(record.mask_s for record in group) / steps:.3f}",
            "cut ms/step": f"{1000 * sum(record.guide_s for record in group) / steps:.3f}",
        }

    return Table.of(row(*key, group) for key, group in groups.items())


def speed(records: Sequence[GrammarRecord]) -> float:
    return sum(record.tokens for record in records) / max(sum(record.seconds for record in records), 1e-9)


def verdict(records: Sequence[GrammarRecord]) -> str:
    """One sentence about validity and identity of the guided outputs."""
    guided = [record for record in records if record.guided]
    finished = [record for record in guided if record.finish_reason != FinishReason.LENGTH.value]
    valid, identical = sum(record.valid for record in finished), sum(record.identical for record in guided)
    return (
        f"{len(guided)} guided outputs: {len(finished)} finished, {valid} of these match their schema; {identical} "
        "have the token ids of plain decoding under the same grammar"
    )


def is_sound(records: Sequence[GrammarRecord]) -> bool:
    """Whether every finished guided output matches its schema, and every output equals that of plain decoding."""
    return all(
        record.identical and (record.valid or not record.guided or record.finish_reason == FinishReason.LENGTH.value)
        for record in records
    )
