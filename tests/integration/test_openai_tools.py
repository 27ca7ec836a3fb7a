"""Tool calls through the OpenAI API."""

from __future__ import annotations

import json

import openai
import pytest
from jsonschema import Draft202012Validator

from tests.integration.openai_requests import MESSAGES, MODEL, chat

pytestmark = [pytest.mark.triton, pytest.mark.slow]

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 5}, "unit": {"$ref": "#/$defs/unit"}},
    "required": ["city", "unit"],
    "$defs": {"unit": {"enum": ["C", "F"]}},
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters": CITY}},
    {"type": "function", "function": {"name": "now"}},
]


def calls_of(answer: openai.types.chat.ChatCompletion) -> list[tuple[str, dict[str, str]]]:
    """Name and arguments of each call; the arguments match the schema of their function."""
    assert answer.choices[0].finish_reason == "tool_calls"
    found = []
    for call in answer.choices[0].message.tool_calls or []:
        assert call.type == "function"
        arguments = json.loads(call.function.arguments)
        schemas = {"weather": CITY, "now": {"type": "object", "maxProperties": 0}}
        Draft202012Validator(schemas[call.function.name]).validate(arguments)
        found.append((call.function.name, arguments))
    return found


def test_a_required_tool_call_matches_its_schema_with_any_strategy_and_streamed(client):
    asked = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 150}

    found = [calls_of(chat(client, extra_body={"strategy": strategy}, **asked)) for strategy in ("none", "hybrid")]

    assert found[0] == found[1]
    assert len(found[0]) == 1
    chunks = list(client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0, stream=True, **asked))
    assert all(chunk.choices[0].delta.content is None for chunk in chunks if chunk.choices)
    deltas = [call for chunk in chunks if chunk.choices for call in chunk.choices[0].delta.tool_calls or []]
    assert "".join(delta.function.name or "" for delta in deltas) == found[0][0][0]
    assert json.loads("".join(delta.function.arguments or "" for delta in deltas)) == found[0][0][1]


def test_a_named_tool_is_called(client):
    for name in ("weather", "now"):
        choice = {"type": "function", "function": {"name": name}}
        ((called, _),) = calls_of(chat(client, tools=TOOLS, tool_choice=choice, max_tokens=150))
        assert called == name


def test_with_auto_a_call_that_the_model_writes_is_read_back_and_text_stays_text(client):
    written = r'<tool_call>\n\{"name": "weather", "arguments": \{"city": "[ab]{2}", "unit": "[CF]"\}\}\n</tool_call>'
    ((name, arguments),) = calls_of(chat(client, tools=TOOLS, max_tokens=150, extra_body={"guided_regex": written}))
    assert name == "weather"
    assert set(arguments["city"]) <= {"a", "b"}

    plain = chat(client, tools=TOOLS)
    assert plain.choices[0].message.tool_calls is None
    assert plain.choices[0].message.content


def test_a_conversation_with_calls_and_results_goes_on(client):
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    history = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
    ]
    assert chat(client, messages=history, tools=TOOLS).usage.completion_tokens == 24


def test_a_text_with_the_field_name_is_no_call_without_tools(client):
    person = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": person}}

    for fields in ({}, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"}, {"n": 2}):
        for choice in chat(client, response_format=wanted, max_tokens=100, **fields).choices:
            assert not choice.message.tool_calls
            Draft202012Validator(person).validate(json.loads(choice.message.content or ""))


def test_a_call_that_max_tokens_cuts_is_no_call(client):
    whole = chat(client, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=150).usage
    assert whole is not None

    for num_tokens in range(1, whole.completion_tokens - 1, 3):
        (choice,) = chat(client, tools=TOOLS, tool_choice="required", max_tokens=num_tokens).choices
        assert (choice.finish_reason, choice.message.tool_calls) == ("length", None)
