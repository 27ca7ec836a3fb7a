"""Measures structured output: speed with and without a grammar, with and without drafts, and validity of outputs.

Each schema is one row. All contenders run it in rotating order, so that figures are comparable within a row:

    none | none + grammar | hybrid | hybrid + grammar
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from pydantic import Field, ValidationError

from pipeline.bench.contenders.in_process import InProcess
from pipeline.bench.data.workload import Prompt, WorkloadRow, load_workload
from pipeline.bench.measure import MeasureOptions, measure
from pipeline.bench.report.report import interval_of
from pipeline.bench.report.results import OVERALL, MeasuredRequest, RequestRecord, SummaryRow
from pipeline.bench.report.summary import summarize
from pipeline.config.schema import Frozen
from pipeline.decoding.grammar.guide import Guide
from pipeline.decoding.request import FinishReason, GenerationRequest
from pipeline.errors import UserError

# Forty schemas: forms, lists, enums, nested objects, free text.
DEFAULT_SCHEMAS = Path(__file__).parent / "data" / "schemas.jsonl"
SYSTEM = "You answer with one JSON value and nothing else."
# End of the name of a strategy that runs with the grammar.
GUIDED = " + grammar"


class SchemaRow(Frozen, extra="ignore"):
    """One entry of a schema file: {"id", "task", "prompt", "schema"}."""

    row_id: str = Field(alias="id", min_length=1)
    task: str = Field(min_length=1)
    prompt: str = Field(min_length=1)
    content: dict[str, Any] = Field(alias="schema")


class SchemaRecord(RequestRecord):
    """One request. guided: whether its schema was the grammar. valid: whether the whole output matches the schema.
    identical: whether it equals the baseline's output under the same condition."""

    guided: bool
    valid: bool
    text: str

    @property
    def finished(self) -> bool:
        return self.finish_reason != FinishReason.LENGTH.value


class SchemaContender:
    """One strategy, measured with the grammar of each request or, unless `guided`, without it."""

    def __init__(self, opened: InProcess, strategy: str, guided: bool) -> None:
        self.name = strategy + GUIDED * guided
        self._own = opened.contender(strategy)
        self._compiler = opened.compiler
        self._guided = guided

    def forget(self) -> None:
        self._own.forget()

    def generate(self, request: GenerationRequest, prompt: Prompt) -> MeasuredRequest:
        assert request.guide is not None, "every row has a schema"
        if not self._guided:
            return self._own.generate(replace(request, guide=None), prompt)
        self._compiler.matcher(request.guide, request.end_ids).result()  # compiled before the time is measured
        return self._own.generate(request, prompt)


def load_schemas(path: Path, limit: int | None = None, tasks: Iterable[str] | None = None) -> list[WorkloadRow]:
    """Read a schema file. Raises UserError with the line of a row that is invalid."""
    return load_workload(path, limit, tasks, _row_of)


def _row_of(value: Any, where: str, number: int) -> WorkloadRow:
    try:
        row = SchemaRow.model_validate(value)
    except ValidationError as error:
        text = f'{where} is not a row of schemas; it must be {{"id", "task", "prompt", "schema": {{...}}}}.'
        raise UserError(text) from error
    if fault := fault_of(row.content):
        raise UserError(f"{where} has a schema with which outputs cannot be checked: {fault}.")
    return WorkloadRow(row.row_id, row.task, (row.prompt,), SYSTEM, Guide("json_schema", json.dumps(row.content)))


def measure_schemas(
    opened: InProcess,
    rows: Sequence[WorkloadRow],
    strategies: Sequence[str],
    options: MeasureOptions,
    on_record: Callable[[RequestRecord], None] = lambda record: None,
) -> list[SchemaRecord]:
    """Return records in the order of rows. strategies: the baseline first."""
    contenders = [SchemaContender(opened, strategy, guided) for guided in (False, True) for strategy in strategies]
    records = measure(contenders, rows, opened.codec, options, on_record)
    schemas = {row.row_id: json.loads(row.guide.text) for row in rows if row.guide is not None}
    references = {(record.id, record.repeat, record.strategy): record.output_ids for record in records}
    found = []
    for record in records:
        guided, text = record.strategy.endswith(GUIDED), opened.decode(record.output_ids)
        expected = references[record.id, record.repeat, strategies[0] + GUIDED * guided]
        fields = dict(record) | {"identical": record.output_ids == expected}
        found.append(SchemaRecord(**fields, guided=guided, valid=matches(schemas[record.id], text), text=text))
    return found


def fault_of(schema: Any) -> str:
    """Why `matches` does not work with a schema, such as a regular expression that Python does not have; else an empty
    text."""
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return str(error.message)
    return ""


def matches(schema: Any, text: str) -> bool:
    """Whether a text is JSON that the schema permits."""
    try:
        return bool(Draft202012Validator(schema).is_valid(json.loads(text)))
    except (ValueError, RecursionError):  # the latter for an output that only opens brackets
        return False


def summary_table(records: Sequence[SchemaRecord]) -> list[dict[str, str]]:
    """One row per strategy without the grammar, then one per strategy with it: counts of outputs, speed against the
    baseline under the same condition, and times per step."""
    baseline = records[0].strategy

    def table_row(row: SummaryRow) -> dict[str, str]:
        group = [record for record in records if record.strategy == row.strategy]

        def ms_per_step(seconds: Iterable[float]) -> float:
            return 1000 * sum(seconds) / row.steps

        return {
            "strategy": row.strategy,
            "outputs": str(row.num_requests),
            "finished": str(sum(record.finished for record in group)),
            "valid": str(sum(record.valid for record in group)),
            "identical": str(row.num_identical),
            "tokens/s": f"{row.tokens_per_s:.1f}",
            "speedup": f"{row.speedup:.2f}",
            "95% interval": interval_of(row),
            "tokens/step": f"{row.acceptance_length:.2f}",
            "forced": str(sum(record.forced_tokens for record in group)),
            "ms/step": f"{ms_per_step(record.seconds for record in group):.1f}",
            "mask ms/step": f"{ms_per_step(record.mask_seconds for record in group):.3f}",
            "cut ms/step": f"{ms_per_step(record.guide_seconds for record in group):.3f}",
        }

    return [
        table_row(row)
        for guided in (False, True)
        for row in summarize([each for each in records if each.guided == guided], baseline + GUIDED * guided)
        if row.task == OVERALL
    ]


def verdict(records: Sequence[SchemaRecord]) -> str:
    """One sentence about validity and identity of the guided outputs."""
    guided = [record for record in records if record.guided]
    finished = [record for record in guided if record.finished]
    valid, identical = sum(record.valid for record in finished), sum(record.identical for record in guided)
    return (
        f"{len(guided)} guided outputs: {len(finished)} finished, {valid} of these match their schema; {identical} "
        "have the token ids of plain decoding under the same grammar"
    )


def is_sound(records: Sequence[SchemaRecord], epsilon: float) -> bool:
    """Whether every finished guided output matches its schema, and every output equals that of plain decoding, if
    passes of the engine do not round differently. epsilon: see `epsilon_of`."""
    are_valid = all(record.valid or not record.guided or not record.finished for record in records)
    return are_valid and (epsilon > 0 or all(record.identical for record in records))
