"""Guides of tools: every output is a valid call, in the form that Dynamo parses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from llguidance import LLMatcher

from pipeline.decoding.grammar.guide import Guide
from pipeline.decoding.grammar.translation import grammar_text
from pipeline.dynamo.tool_guides import tool_guide
from pipeline.errors import RequestError
from pipeline.gateway.openai_fields import tools_option
from tests.grammars import TOKENS, vocabulary

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["ab", "ba"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTIONS = {"weather": CITY, "now": None}


def asked(choice: Any, parallel: bool = True) -> str:
    return json.dumps({"functions": FUNCTIONS, "choice": choice, "parallel": parallel})


def guide(choice: Any, parser: str | None = None, parallel: bool = True) -> tuple[str, Any]:
    found = tool_guide(asked(choice, parallel), parser)
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


def test_without_parallel_calls_there_is_one() -> None:
    _, schema = guide("required", parallel=False)
    call = {"name": "now", "parameters": {}}
    assert Draft202012Validator(schema).is_valid([call])
    assert not Draft202012Validator(schema).is_valid([call, call])


def test_a_named_function_gives_its_arguments_alone() -> None:
    assert guide({"name": "weather"}) == ("json_schema", CITY)
    assert guide({"name": "now"})[1]["additionalProperties"] is False
    with pytest.raises(RequestError, match="tool_choice names 'other', and tools hold weather, now"):
        tool_guide(asked({"name": "other"}), None)


def test_auto_leaves_text_free_and_holds_hermes_calls_to_their_schemas() -> None:
    assert tool_guide(asked("auto"), None) is None
    assert tool_guide(asked("auto"), "llama3_json") is None
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
        ({}, "auto"),
        ({"tool_choice": "auto"}, "auto"),
        ({"tool_choice": "required"}, "required"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, {"name": "f"}),
        ({"tool_choice": "none"}, None),
        ({"tool_choice": {"type": "custom"}}, None),
        ({"tools": []}, None),
        ({"tools": [{"type": "function"}]}, None),
        ({"tools": "f"}, None),
    ],
)
def test_the_gateway_hands_over_well_formed_tools(more: dict[str, Any], expected: Any) -> None:
    body = {"tools": [{"type": "function", "function": {"name": "f", "parameters": CITY}}]} | more
    found = tools_option(body)
    assert found == ({} if expected is None else {"functions": {"f": CITY}, "choice": expected, "parallel": True})


def test_parallel_calls_can_be_switched_off() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert tools_option({"tools": tools, "parallel_tool_calls": False})["parallel"] is False
