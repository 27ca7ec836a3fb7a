"""Guides of tools: every output is a valid call, in the form that Dynamo parses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer

from pipeline.decoding.grammar.guide import Guide
from pipeline.decoding.grammar.translation import grammar_text
from pipeline.errors import RequestError
from pipeline.gateway.annotations import read_annotations
from pipeline.gateway.openai_fields import for_front_end
from pipeline.gateway.response_guides import response_guide
from pipeline.gateway.tool_guides import tool_guide
from tests.grammars import TOKENS, vocabulary

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["ab", "ba"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTIONS: dict[str, dict[str, Any]] = {"weather": {"parameters": CITY, "strict": True}, "now": {}}


def guide(choice: Any, parser: str | None = None, parallel: bool = True) -> tuple[str, Any]:
    found = tool_guide(FUNCTIONS, choice, parallel, parser)
    assert found is not None
    return found[0], json.loads(found[1])


@pytest.mark.parametrize(
    ("calls", "matches"),
    [
        ([{"name": "weather", "parameters": {"city": "ab"}}], True),
        ([{"name": "now", "parameters": {}}, {"name": "weather", "parameters": {"city": "ba"}}], True),
        ([], False),
        ([{"name": "weather", "parameters": {"city": "x"}}], False),
        ([{"name": "weather", "parameters": {}}], False),
        ([{"name": "now", "parameters": {"city": "ab"}}], False),
        ([{"name": "other", "parameters": {}}], False),
        ([{"name": "now", "parameters": {}, "more": 1}], False),
    ],
)
def test_a_required_call_is_a_list_of_calls_with_matching_arguments(calls: Any, matches: bool) -> None:
    kind, schema = guide("required")
    assert kind == "json_schema"
    assert Draft202012Validator(schema).is_valid(calls) == matches
    LLMatcher(vocabulary().tokenizer, grammar_text(Guide(kind, json.dumps(schema)), ()))


REFERENCES = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["city", "next"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("number", [0, 1])
def test_references_in_parameters_point_into_their_own_schema(number: int) -> None:
    functions = {
        name: {"parameters": REFERENCES | {"$defs": {"city": {"const": city}}}}
        for name, city in (("f", "ab"), ("g", "ba"))
    }
    kind, schema = tool_guide(functions, "required", True, None) or ("", "")
    city = ("ab", "ba")[number]
    calls = [[{"name": name, "parameters": {"city": city, "next": {"city": city, "next": None}}}] for name in "fg"]
    matchers = [LLMatcher(LLTokenizer("byte"), grammar_text(Guide(kind, schema), ())) for _ in calls]
    texts = [json.dumps(call).encode() for call in calls]
    admitted = [m.try_consume_tokens([*text]) == len(text) for m, text in zip(matchers, texts, strict=True)]
    assert admitted == [Draft202012Validator(json.loads(schema)).is_valid(call) for call in calls]
    assert admitted == [number == 0, number == 1]


UNIQUE = {"type": "object", "properties": {"a": {"type": "array", "items": {"const": 1}, "uniqueItems": True}}}


@pytest.mark.parametrize("choice", ["auto", "required", {"name": "f"}])
def test_what_the_grammar_does_not_support_is_ignored_unless_a_function_is_strict(choice: Any) -> None:
    for strict in (None, False, True):
        functions = {"f": {"parameters": UNIQUE, "strict": strict}, "g": {}}
        kind, text = tool_guide(functions, choice, True, "hermes") or ("", "")
        matcher = LLMatcher(vocabulary().tokenizer, grammar_text(Guide(kind, text), ()), log_level=0)
        assert matcher.is_error() == (strict is True)


def test_what_the_grammar_does_not_support_is_ignored_in_a_response_format_that_is_not_strict() -> None:
    for strict in (None, False, True):
        schema = {"name": "n", "schema": UNIQUE, "strict": strict}
        kind, text = response_guide({"response_format": {"type": "json_schema", "json_schema": schema}}) or ("", "")
        matcher = LLMatcher(vocabulary().tokenizer, grammar_text(Guide(kind, text), ()), log_level=0)
        assert matcher.is_error() == (strict is not False)


def test_without_parallel_calls_there_is_one() -> None:
    _, schema = guide("required", parallel=False)
    call = {"name": "now", "parameters": {}}
    assert Draft202012Validator(schema).is_valid([call])
    assert not Draft202012Validator(schema).is_valid([call, call])


def test_a_named_function_gives_its_arguments_alone() -> None:
    assert guide({"name": "weather"}) == ("json_schema", CITY)
    assert guide({"name": "now"})[1]["additionalProperties"] is False
    with pytest.raises(RequestError, match="tool_choice names 'other', and tools hold weather, now"):
        tool_guide(FUNCTIONS, {"name": "other"}, True, None)


def test_auto_leaves_text_free_and_holds_hermes_calls_to_their_schemas() -> None:
    assert tool_guide(FUNCTIONS, "auto", True, None) is None
    assert tool_guide(FUNCTIONS, "auto", True, "llama3_json") is None
    kind, tag = guide("auto", "hermes")
    assert kind == "structural_tag"
    begins = [structure["begin"] for structure in tag["structures"]]
    assert begins == [f'<tool_call>\n{{"name": "{name}", "arguments": ' for name in FUNCTIONS]
    call = begins[0] + '{"city": "ab"}' + tag["structures"][0]["end"]
    assert json.loads(call.removeprefix("<tool_call>").removesuffix("</tool_call>")) == {
        "name": "weather",
        "arguments": {"city": "ab"},
    }
    matcher = LLMatcher(vocabulary().tokenizer, grammar_text(Guide(kind, json.dumps(tag)), ()))
    assert not matcher.is_error(), matcher.get_error()
    assert matcher.try_consume_tokens([TOKENS.index("a"), TOKENS.index("b")]) == 2, "text is free"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, "structural_tag"),
        ({"tool_choice": "auto"}, "structural_tag"),
        ({"tool_choice": "required"}, "json_schema"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "json_schema"),
        ({"tool_choice": "none"}, None),
        ({"tools": []}, None),
    ],
)
def test_well_formed_tools_have_a_guide(more: dict[str, Any], expected: Any) -> None:
    body = {"messages": [], "tools": [{"type": "function", "function": {"name": "f", "parameters": CITY}}]} | more
    found = read_annotations(for_front_end(body, "chat", "hermes")["nvext"]["annotations"])
    assert (found.get("guide_type"), "tools" in found) == (expected, expected is not None)


def test_parallel_calls_can_be_switched_off() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = {"messages": [], "tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
    found = read_annotations(for_front_end(body, "chat", None)["nvext"]["annotations"])
    assert json.loads(found["guide"])["maxItems"] == 1
