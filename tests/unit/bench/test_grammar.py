"""Shipped schemas, files of schemas, and the verdict of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from llguidance import LLMatcher

from pipeline.bench.grammar import (
    DEFAULT_SCHEMAS,
    GUIDED,
    SchemaRecord,
    is_sound,
    load_schemas,
    matches,
    summary_table,
    verdict,
)
from pipeline.bench.verify.verify import EPSILON
from pipeline.cli.verify import guide_file
from pipeline.decoding.grammar.guide import Guide
from pipeline.decoding.grammar.translation import grammar_text
from pipeline.errors import UserError

RECORD = SchemaRecord(
    id="form-1",
    task="form",
    strategy=f"none{GUIDED}",
    guided=True,
    prompt_ids=[1],
    output_ids=[0] * 40,
    steps=39,
    draft_tokens=0,
    accepted_tokens=0,
    acceptance_lengths=[1] * 39,
    seconds=2.0,
    ttft_s=0.1,
    draft_seconds=0.0,
    forced_tokens=1,
    mask_seconds=0.039,
    finish_reason="end_token",
    valid=True,
    identical=True,
    text="{}",
)
FREE = RECORD.model_copy(update={"strategy": "none", "guided": False, "seconds": 1.0})
FASTER = RECORD.model_copy(update={"strategy": f"hybrid{GUIDED}", "steps": 10, "seconds": 0.5})


def changed(record: SchemaRecord, **fields: object) -> SchemaRecord:
    return record.model_copy(update=fields)


def test_forty_schemas_of_five_kinds_are_shipped_and_each_is_sound() -> None:
    rows = load_schemas(DEFAULT_SCHEMAS)
    assert len({row.row_id for row in rows}) == 40
    assert {row.task for row in rows} == {"form", "list", "enum", "nested", "text"}
    for row in rows:
        assert row.guide is not None
        Draft202012Validator.check_schema(json.loads(row.guide.text))
        assert LLMatcher.validate_grammar(grammar_text(row.guide, ())) == "", row.row_id
    assert len(load_schemas(DEFAULT_SCHEMAS, 3)) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no rows"),
        ("{", "line 1 is not JSON"),
        ('{"id": "a", "task": "b", "prompt": "c"}', "line 1 is not a row of schemas"),
        ('{"id": "a", "task": "b", "prompt": "", "schema": {}}', "line 1 is not a row of schemas"),
        ("[]", "line 1 is not a row of schemas"),
        ('{"id": "a", "task": "b", "prompt": "c", "schema": {}}\n' * 2, "the id 'a' is taken by"),
        ('{"id": "a", "task": "overall", "prompt": "c", "schema": {}}', "the task 'overall' has the name of the total"),
        (
            '{"id": "a", "task": "b", "prompt": "c", "schema": {"pattern": "\\\\p{Lu}"}}',
            "line 1 has a schema with which outputs cannot be checked: .* is not a 'regex'",
        ),
    ],
)
def test_a_file_that_holds_no_schemas_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "schemas.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        load_schemas(path)


@pytest.mark.parametrize(
    ("text", "good"),
    [('{"a": 1}', True), ('{"a": "1"}', False), ('{"a": 1', False), ("", False), ("[" * 10_000, False)],
)
def test_an_output_matches_as_a_whole_or_not(text: str, good: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert matches(schema, text) is good


def test_the_table_compares_with_the_first_strategy_under_the_same_condition() -> None:
    table = summary_table([FREE, RECORD, FASTER])
    assert [row["speedup"] for row in table] == ["1.00", "1.00", "4.00"]
    assert [row["tokens/s"] for row in table] == ["40.0", "20.0", "80.0"]
    assert table[1]["mask ms/step"] == "1.000"
    assert table[2]["tokens/step"] == "4.00"


def test_one_invalid_or_different_output_is_not_sound() -> None:
    assert is_sound([RECORD, FASTER], epsilon=0.0)
    assert is_sound([changed(FREE, valid=False)], epsilon=0.0)
    assert is_sound([changed(RECORD, valid=False, finish_reason="length")], epsilon=0.0)
    assert not is_sound([changed(RECORD, valid=False)], epsilon=0.0)
    assert not is_sound([changed(FASTER, identical=False)], epsilon=0.0)
    rounding = EPSILON["bfloat16"]
    assert is_sound([changed(FASTER, identical=False)], rounding)
    assert not is_sound([changed(RECORD, valid=False)], rounding)
    assert verdict([RECORD, changed(FASTER, identical=False)]).startswith("2 guided outputs: 2 finished, 2 of these")


def test_the_kind_of_a_guide_follows_from_the_suffix(tmp_path: Path) -> None:
    for name, text, kind in (
        ("a.json", json.dumps({"type": "object"}), "json_schema"),
        ("a.lark", 'start: "a"', "ebnf_grammar"),
        ("a.regex", "a+", "regex"),
    ):
        path = tmp_path / name
        path.write_text(text + ("\n" if kind == "regex" else ""))
        assert guide_file(path) == Guide(kind, text)
    with pytest.raises(UserError, match=r"it must end in one of \.json"):
        guide_file(tmp_path / "a.yaml")
    with pytest.raises(UserError, match="cannot be read"):
        guide_file(tmp_path / "none.json")
