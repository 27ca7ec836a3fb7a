"""Schemas that llguidance cannot use: refused before it compiles them, or relaxed where that is permitted."""

from __future__ import annotations

import json
from typing import Any

import llguidance
import pytest

from pipeline.decoding.grammar.checker import parser_limits
from pipeline.decoding.grammar.guide import Guide
from pipeline.decoding.grammar.json_schema import (
    MAX_OPTIONAL_PROPERTIES,
    drop_unsupported_patterns,
    require_few_optional,
)
from pipeline.decoding.grammar.translation import grammar_text
from pipeline.errors import RequestError

LENIENT = {"x-guidance": {"lenient": True}}
TEXT = {"type": "string"}


def object_of(count: int, required: tuple[int, ...] = ()) -> dict[str, Any]:
    names = [f"p{number}" for number in range(count)]
    return {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in names},
        "required": [names[number] for number in required],
    }


def fault_of(schema: dict[str, Any]) -> str:
    """The fault that llguidance finds in the translated schema; empty without one."""
    grammar = grammar_text(Guide("json_schema", json.dumps(schema)), ())
    found: str = llguidance.LLMatcher.validate_grammar(grammar, None, limits=parser_limits())
    return "" if found.startswith("WARNING") else found


@pytest.mark.parametrize(
    "schema",
    [
        object_of(7000),
        object_of(MAX_OPTIONAL_PROPERTIES + 2, (0,)),
        {"type": "array", "items": object_of(MAX_OPTIONAL_PROPERTIES + 1)},
        {"$defs": {"enum": object_of(MAX_OPTIONAL_PROPERTIES + 1)}, "$ref": "#/$defs/enum"},
        {"anyOf": [TEXT, object_of(MAX_OPTIONAL_PROPERTIES + 1)]},
    ],
)
def test_an_object_with_too_many_optional_properties_in_a_row_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"optional properties in a row; at most 480 can be compiled; make some"):
        grammar_text(Guide("json_schema", json.dumps(schema)), ())
    tag = {"structures": [{"begin": "<a>", "schema": schema, "end": "</a>"}], "triggers": ["<a>"]}
    with pytest.raises(RequestError, match="optional properties in a row"):
        grammar_text(Guide("structural_tag", json.dumps(tag)), ())


@pytest.mark.parametrize(
    "schema",
    [
        object_of(MAX_OPTIONAL_PROPERTIES),
        object_of(2 * MAX_OPTIONAL_PROPERTIES, (0, MAX_OPTIONAL_PROPERTIES)),
        object_of(1000, tuple(range(1000))),
        {"const": object_of(1000)},
        {"enum": [object_of(1000)]},
        {"properties": [], "required": "a"},
        object_of(1000, tuple(range(1000))) | {"properties": True},
        {"properties": {"properties": TEXT, "required": TEXT}},
    ],
)
def test_other_schemas_are_not_refused(schema: dict[str, Any]) -> None:
    require_few_optional(schema)


def test_the_parser_accepts_the_start_of_an_object_of_the_permitted_size() -> None:
    tokenizer = llguidance.LLTokenizer("byte")
    grammar = grammar_text(Guide("json_schema", json.dumps(object_of(MAX_OPTIONAL_PROPERTIES))), ())
    matcher = llguidance.LLMatcher(tokenizer, grammar, limits=parser_limits())
    for token in tokenizer.tokenize_str('{"p0": 1, "p479": 2'):
        assert matcher.consume_token(token), matcher.get_error()


@pytest.mark.parametrize("pattern", ["^(?=a)b$", "(?!x)y", "(?<=a)b", "(?<!a)b", r"(a)\1", r"[a(]*(?!b)", r"\\(?=a)"])
def test_a_pattern_that_is_not_supported_is_ignored_if_the_schema_is_lenient(pattern: str) -> None:
    schema = {
        "type": "object",
        "properties": {"pattern": {"type": "string", "pattern": pattern}, "list": {"items": [{"pattern": pattern}]}},
        "patternProperties": {pattern: TEXT, "^b": TEXT},
    }
    assert fault_of(schema), "a strict schema is refused"
    assert not fault_of(schema | LENIENT)

    relaxed = json.loads(json.dumps(schema | LENIENT))
    assert drop_unsupported_patterns(relaxed)
    assert relaxed == LENIENT | {
        "type": "object",
        "properties": {"pattern": TEXT, "list": {"items": [{}]}},
        "patternProperties": {"^b": TEXT},
    }


@pytest.mark.parametrize("pattern", ["^a+$", "(?:a|b)", "(?P<n>a)", r"\(?=", "[(?=]", r"[\](?!]", "[(?=a", "a\\"])
def test_other_patterns_stay(pattern: str) -> None:
    schema = {"type": "string", "pattern": pattern, **LENIENT}
    assert not drop_unsupported_patterns(schema)
    assert schema["pattern"] == pattern


def test_data_is_no_schema() -> None:
    schema = {"const": {"pattern": "(?=a)"}, "enum": [{"pattern": "(?=a)"}], **LENIENT}
    assert not drop_unsupported_patterns(schema)
    assert not drop_unsupported_patterns({"x-guidance": True, "pattern": "(?=a)"})


def test_a_long_pattern_takes_no_longer_per_character() -> None:
    """With a search that begins again at each bracket the test would take minutes."""
    assert not drop_unsupported_patterns({"pattern": "[" * 250_000 + "\\", **LENIENT})
