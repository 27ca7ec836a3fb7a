"""Guides as grammars: what each kind admits, and which JSON schemas have no finite instance."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.decoding.grammar.finiteness import require_finite
from pipeline.decoding.grammar.guide import Guide
from pipeline.errors import RequestError
from tests.grammars import END, TOKENS, compiler


def admits(guide: Guide, *tokens: str) -> bool:
    """Whether the guide admits an output of these tokens, as a whole."""
    matcher = compiler().matcher(guide, frozenset({END})).result()
    try:
        matcher.consume([TOKENS.index(token) for token in tokens])
    except RequestError:
        return False
    return matcher.is_accepting


@pytest.mark.parametrize(
    ("guide", "good", "bad"),
    [
        (Guide("regex", "a|bb"), ("bb",), ("b",)),
        (Guide("choice", '["ab", "x1"]'), ("x1",), ("x",)),
        (Guide("ebnf_grammar", 'root ::= "a" | "b" root'), ("b", "a"), ("b",)),
        (Guide("ebnf_grammar", 'start: "a" | "b" start'), ("bb", "a"), ("a", "a")),
        (Guide("json_schema", '{"type": "array", "items": {"const": 1}}'), ("[", "1", "]"), ("[", "2", "]")),
        (Guide("json_schema", "true"), ("[", "1", "]"), ("x",)),
        (Guide("json"), ("{", "}"), ("[", "]")),
    ],
)
def test_each_kind_admits_what_it_says(guide: Guide, good: tuple[str, ...], bad: tuple[str, ...]) -> None:
    assert admits(guide, *good)
    assert not admits(guide, *bad)


def tag(trigger: str, begin: str, **schema: Any) -> Guide:
    structure = {"begin": begin, "schema": {"const": 1} | schema, "end": "x"}
    return Guide("structural_tag", json.dumps({"structures": [structure], "triggers": [trigger]}))


def test_a_structural_tag_is_free_text_until_its_trigger() -> None:
    guide = tag("<tool>", "<tool>a")
    assert admits(guide, "b", "2")
    assert admits(guide, "b", "<tool>", "a", "1", "x", "b")
    assert not admits(guide, "<tool>", "b")
    assert not admits(guide, "<tool>", "a", "2")


def test_a_trigger_may_be_text() -> None:
    assert admits(tag("{", "{a"), "b", "{", "a", "1", "x")
    assert not admits(tag("{", "{a"), "{", "b")


def test_rules_of_a_tags_schema_are_added_to_the_format() -> None:
    guide = tag("{", "{a", **{"const": [1, 1], "x-guidance": {"item_separator": ","}})
    assert admits(guide, "{", "a", "[", "1", ",", "1", "]", "x")
    lenient = tag("{", "{a", **{"type": "array", "const": [1], "uniqueItems": True, "x-guidance": {"lenient": True}})
    assert admits(lenient, "{", "a", "[", "1", "]", "x")
    with pytest.raises(RequestError, match="invalid type: integer `3`"):
        admits(tag("{", "{a", **{"x-guidance": 3}))


def test_a_begin_without_trigger_is_refused() -> None:
    with pytest.raises(RequestError, match="no trigger"):
        admits(tag("b", "a"))


NODE = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}


@pytest.mark.parametrize(
    "schema",
    [
        NODE,
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"type": "array", "minItems": 1, "items": {"$ref": "#"}},
        {"anyOf": [NODE | {"properties": {"next": {"$ref": "#"}}}, {"$ref": "#"}]},
        {"allOf": [{"type": "object"}, {"$ref": "#"}]},
        {**NODE, "type": ["object"]},
        {**NODE, "type": ["object", "array"], "minItems": 1, "items": {"$ref": "#"}},
        {"type": "object", "required": ["next"], "additionalProperties": {"$ref": "#"}},
        {"type": "object", "required": ["next"], "additionalProperties": NODE, "patternProperties": {"^n": NODE}},
        {"type": "object", "minProperties": 1, "additionalProperties": {"$ref": "#"}},
        {"type": "array", "minItems": 1, "items": [{"$ref": "#"}]},
        {"$ref": "#/$defs/a%20b", "$defs": {"a b": {"$ref": "#"}}},
        {"allOf": [{**NODE, "$id": "a", "properties": {"next": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"$ref": "#"}}}]},
        {"type": "array", "minItems": 2, "items": [{"type": "integer"}], "additionalItems": {"$ref": "#"}},
    ],
)
def test_a_schema_that_requires_itself_is_endless(schema: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="requires itself recursively"):
        require_finite(schema)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": "object", "properties": {"next": {"$ref": "#"}}},
        {**NODE, "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}},
        {"type": "array", "items": {"$ref": "#"}},
        {"type": "array", "minItems": 1, "prefixItems": [{"type": "integer"}], "items": {"$ref": "#"}},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"enum": [1]}}},
        {"$ref": "https://example.org/schema"},
        {"$ref": "#name", "$defs": {"a": {"$anchor": "name", "type": "null"}}},
        {"allOf": [{"$id": "a", "$ref": "#/$defs/b", "$defs": {"b": True}}], "$defs": {"b": {"$ref": "#"}}},
        {"$id": "a", "type": ["object", "array"], "properties": {"next": {"$ref": "#"}}, "required": ["next"]},
        {"const": {"$ref": "#"}},
        {**NODE, "type": ["object", "null"]},
        {**NODE, "type": ["object", "array"]},
        {"type": "object", "additionalProperties": {"$ref": "#"}},
        {"type": "object", "required": ["next"], "additionalProperties": {"type": ["object", "null"]}},
        {"type": "object", "required": ["n"], "additionalProperties": NODE, "patternProperties": {"^n": True}},
        {"type": [], "required": [[]], "minProperties": "1"},
        {"type": [[]], "required": "a", "properties": []},
        {"type": "object", "required": [[]], "properties": {}},
        {"type": "object", "minProperties": 1, "properties": {"name": {"type": "string"}, "next": {"$ref": "#"}}},
    ],
)
def test_a_schema_with_a_finite_instance_passes(schema: Any) -> None:
    require_finite(schema)


def test_a_long_chain_of_references_takes_linear_time() -> None:
    chain = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(20_000)} | {"a20000": {"const": 1}}
    require_finite({"$ref": "#/$defs/a0", "$defs": chain})
