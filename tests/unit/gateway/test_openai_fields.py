"""Conversion of OpenAI requests for Dynamo's front end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.errors import RequestError
from pipeline.gateway.annotations import read_annotations
from pipeline.gateway.openai_fields import for_front_end

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "a"}], "max_tokens": 5}
TOOL = {"type": "function", "function": {"name": "f", "description": "a function", "parameters": None}}


def options(**more: Any) -> dict[str, str]:
    return read_annotations(for_front_end(BODY | more, "chat", None)["nvext"]["annotations"])


def test_what_the_front_end_knows_stays_as_it_is():
    sent = for_front_end(BODY | {"seed": 3, "stream": True}, "chat", None)

    assert {name: value for name, value in sent.items() if name != "nvext"} == BODY | {"seed": 3, "stream": True}
    assert sent["nvext"] == {"annotations": ["max_tokens:5"], "extra_fields": ["engine_data"]}


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("strategy", "trie", {"strategy": "trie"}),
        ("num_draft_tokens", 4, {"num_draft_tokens": "4"}),
        ("prediction", {"type": "content", "content": "x: y"}, {"prediction": "x: y"}),
        (
            "prediction",
            {"type": "content", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]},
            {"prediction": "xy"},
        ),
        ("prediction", {"type": "content", "content": ""}, {}),
        ("stop", "a", {"stop_words": '["a"]'}),
        ("stop", ["a", "b: c", "d", "e", "f"], {"stop_words": '["a", "b: c", "d", "e", "f"]'}),
        ("stop", [], {}),
        ("stop_token_ids", [5, 6], {"stop_token_ids": "[5, 6]"}),
        ("stop_token_ids", [], {}),
        ("logit_bias", {"5": -100}, {"logit_bias": '{"5": -100}'}),
        ("logit_bias", {}, {}),
        ("response_format", {"type": "text"}, {}),
        ("response_format", {"type": "json_object"}, {"guide_type": "json", "guide": ""}),
        *(
            (
                "response_format",
                {"type": "json_object", key: {"type": "null"}},
                {"guide_type": "json_schema", "guide": '{"type": "null"}'},
            )
            for key in ("schema", "value")
        ),
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
            {"guide_type": "json_schema", "guide": json.dumps({"type": "object"})},
        ),
        ("guided_regex", "a+", {"guide_type": "regex", "guide": "a+"}),
        ("guided_choice", ["a.", "b"], {"guide_type": "regex", "guide": r"(?:a\.)|(?:b)"}),
        ("structured_outputs", {"choice": ["a"], "regex": None}, {"guide_type": "regex", "guide": "(?:a)"}),
        ("structured_outputs", {"grammar": "g"}, {"guide_type": "ebnf_grammar", "guide": "g"}),
        ("guided_json", {"type": "null"}, {"guide_type": "json_schema", "guide": '{"type": "null"}'}),
    ],
)
def test_fields_that_would_be_lost_become_annotations(field, value, expected):
    assert options(**{field: value}) == {"max_tokens": "5"} | expected
    assert field not in for_front_end(BODY | {field: value}, "chat", None)


def test_the_limit_is_always_named_so_that_a_worker_can_count_what_moved():
    body = {name: value for name, value in BODY.items() if name != "max_tokens"}

    assert for_front_end(body | {"max_completion_tokens": 7}, "chat", None)["nvext"]["annotations"] == ["max_tokens:7"]
    chat, completion = for_front_end(body, "chat", None), for_front_end(body, "completions", None)
    assert chat["nvext"]["annotations"] == [f"max_tokens:{chat['max_tokens']}"]
    assert completion["max_tokens"] == 16


@pytest.mark.parametrize(
    ("prompt", "marks"),
    [("a", ["plain_text:true"]), (["a", "b"], ["plain_text:true"]), ([1, 2], []), ([[1], [2]], [])],
)
def test_a_prompt_that_is_a_text_is_marked(prompt, marks):
    sent = for_front_end({"model": "m", "prompt": prompt, "max_tokens": 5}, "completions", None)
    assert sent["nvext"]["annotations"] == ["max_tokens:5", *marks]


def test_a_client_cannot_set_what_the_worker_counts_by():
    sent = for_front_end(BODY | {"nvext": {"annotations": ["max_tokens:99", "guide:x", "strategy:trie"]}}, "chat", None)

    assert sent["nvext"]["annotations"] == ["strategy:trie", "max_tokens:5"]


def test_statistics_are_asked_for_in_either_way():
    ours = for_front_end(BODY | {"draft_statistics": True, "nvext": {"extra_fields": ["timing"]}}, "chat", None)
    dynamos = for_front_end(BODY | {"nvext": {"extra_fields": ["engine_data"]}}, "chat", None)

    assert ours["nvext"]["extra_fields"] == ["engine_data", "timing"]
    assert "draft_statistics" not in ours
    for sent in (ours, dynamos):
        assert "draft_statistics:true" in sent["nvext"]["annotations"]
    assert "draft_statistics" not in options()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"strategy": 3}, "strategy must be a text"),
        ({"num_draft_tokens": "a"}, "num_draft_tokens must be a whole number"),
        ({"max_tokens": True}, "max_tokens must be a whole number"),
        ({"prediction": {"content": 3}}, "prediction must be"),
        ({"prediction": {"content": [{"type": "image"}]}}, "prediction must be"),
        ({"logit_bias": [1]}, "logit_bias must be an object"),
        ({"response_format": "json"}, "response_format must be an object such as"),
        ({"response_format": {}}, "response_format has type None"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema must be"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "exclude each other"),
        ({"nvext": 3}, "nvext must be an object"),
        ({"echo": True}, "echo is not supported"),
        ({"best_of": 3}, "best_of is not supported"),
        ({"suffix": "a"}, "suffix is not supported"),
        ({"stop": ["a", ""]}, "stop must be a text or a list of texts, none of them empty"),
        ({"include_stop_str_in_output": True}, "include_stop_str_in_output is not supported"),
        ({"prompt_logprobs": 1}, "prompt_logprobs is not supported"),
        ({"prompt_embeds": "AAAA"}, "prompt_embeds is not supported"),
        ({"allowed_token_ids": [1]}, "allowed_token_ids is not supported"),
        ({"bad_words_token_ids": [[1]]}, "bad_words_token_ids is not supported"),
        ({"detokenize": False}, "detokenize must be true"),
        ({"stop_token_ids": 5}, "stop_token_ids must be a list of token ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids must be a list of token ids"),
        ({"stop_token_ids": [True]}, "stop_token_ids must be a list of token ids"),
        ({"guided_json": {}, "guided_whitespace_pattern": " "}, "guided_whitespace_pattern is not supported"),
        ({"structured_outputs": {"json": {}}, "response_format": {"type": "json_object"}}, "exclude each other"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "exclude each other"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs must have one of json, regex"),
        ({"structured_outputs": ["a"]}, "structured_outputs must have one of json, regex"),
        ({"structured_outputs": {}}, "structured_outputs must have one of json, regex"),
        ({"response_format": {"type": "json_object", "schema": "{}"}}, "response_format.schema must be an object"),
        ({"guided_choice": "a"}, "guided_choice must be a list"),
        ({"guided_choice": []}, "guided_choice must be a list"),
        ({"top_logprobs": 2}, "top_logprobs needs logprobs"),
        ({"top_logprobs": 2, "logprobs": False}, "top_logprobs needs logprobs"),
        ({"modalities": ["text", "audio"]}, r'modalities must be \["text"\]'),
        ({"audio": {"voice": "alloy", "format": "mp3"}}, "audio is not supported"),
        ({"web_search_options": {}}, "web_search_options is not supported"),
        ({"verbosity": "low"}, "verbosity is not supported"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": 3}}, "must have a mode"),
        (
            {"tools": "f"},
            'tools must be a list of {"type": "function", "function": {"name": "...", "parameters": {...}}}',
        ),
        ({"tools": [{"type": "function"}]}, "tools must be a list of {"),
        ({"tools": [TOOL, {"type": "custom", "custom": {"name": "f"}}]}, "tools must be a list of {"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools must be a list of {"),
        ({"tool_choice": "any"}, "tool_choice must be none, auto, required, or {"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice must be none, auto, required, or {"),
        ({"nvext": {"annotations": "a"}}, "nvext.annotations must be a list"),
    ],
)
def test_a_field_of_a_wrong_type_or_without_effect_is_named(wrong, sentence):
    with pytest.raises(RequestError, match=sentence):
        options(**wrong)


def test_no_alternatives_are_asked_for_as_without_the_field():
    assert "top_logprobs" not in for_front_end(BODY | {"logprobs": True, "top_logprobs": 0}, "chat", None)
    assert for_front_end(BODY | {"logprobs": True, "top_logprobs": 2}, "chat", None)["top_logprobs"] == 2


def test_fields_without_effect_are_left_out():
    fields = {"user": "", "verbosity": None, "stop": None, "safety_identifier": "a", "prompt_cache_key": "b"}

    assert for_front_end(BODY | fields, "chat", None) == for_front_end(BODY, "chat", None)
    neutral = {"verbosity": "medium", "priority": 0, "length_penalty": 1.0, "add_generation_prompt": True}
    neutral |= {"prompt_cache_options": {"mode": "explicit"}, "use_beam_search": False}
    assert for_front_end(BODY | neutral, "chat", None) == for_front_end(BODY, "chat", None)
    assert for_front_end(BODY | {"priority": 1}, "chat", None)["priority"] == 1  # the front end names it


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({}, {"include_usage": False}),
        ({"include_obfuscation": False}, {"include_usage": False, "include_obfuscation": False}),
        ({"include_usage": True}, {"include_usage": True}),
    ],
)
def test_stream_options_are_completed(options, sent):
    assert for_front_end(BODY | {"stream": True, "stream_options": options}, "chat", None)["stream_options"] == sent


def test_a_refusal_can_come_back_unless_tools_hide_it():
    tools = [{"type": "function", "function": {"name": "f"}}]
    asked = BODY | {"tools": tools, "nvext": {"extra_fields": ["engine_data", "timing"]}}

    assert for_front_end(asked, "chat", None)["nvext"]["extra_fields"] == ["timing"]
    assert for_front_end(asked | {"tool_choice": "none"}, "chat", None)["nvext"]["extra_fields"] == [
        "engine_data",
        "timing",
    ]


def test_a_refusal_in_place_of_a_content_becomes_a_text():
    """OpenAI's clients send the assistant's message back as it came."""
    call = {"role": "assistant", "content": None, "refusal": "no", "tool_calls": [{}]}
    messages = [{"role": "assistant", "content": None, "refusal": "no"}, call]

    sent = for_front_end({"messages": messages}, "chat", None)["messages"]

    assert sent == [{"role": "assistant", "content": "no"}, call]


def test_parts_with_a_refusal_become_texts():
    parts = [{"type": "text", "text": "So:"}, {"type": "refusal", "refusal": "no"}]
    messages = [*BODY["messages"], {"role": "assistant", "content": parts}]
    sent = for_front_end(BODY | {"messages": messages}, "chat", None)

    assert sent["messages"] == [
        *BODY["messages"],
        {"role": "assistant", "content": [{"type": "text", "text": "So:"}, {"type": "text", "text": "no"}]},
    ]


def test_tools_stay_and_have_a_guide():
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    sent = for_front_end(BODY | {"tools": tools, "tool_choice": "required"}, "chat", None)

    assert (sent["tools"], sent["tool_choice"]) == (tools, "required")
    found = options(tools=tools, tool_choice="required")
    assert (found["tools"], found["guide_type"]) == ("true", "json_schema")
    schema = json.loads(found["guide"])["items"]["anyOf"][0]["properties"]["parameters"]
    assert schema == {"type": "object", "$id": "function:0"}
    assert "tools" not in options(tools=tools, tool_choice="none")


def test_allowed_tools_become_the_only_tools():
    one, other = ({"type": "function", "function": {"name": name}} for name in "ab")
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [other]}}
    sent = for_front_end(BODY | {"tools": [one, other], "tool_choice": allowed}, "chat", None)

    assert (sent["tools"], sent["tool_choice"]) == ([other], "required")
    (call,) = json.loads(options(tools=[one, other], tool_choice=allowed)["guide"])["items"]["anyOf"]
    assert call["properties"]["name"] == {"const": "b"}
    with pytest.raises(RequestError, match="allows 'b', which is not in tools"):
        options(tools=[one], tool_choice=allowed)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_a_response_format_is_one_of_texts_and_not_of_calls(choice):
    """instructor sends both. OpenAI and vLLM ignore the format, too."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    asked = {"tools": tools, "response_format": {"type": "json_object"}}

    for text in ({}, {"tool_choice": "auto"}, {"tool_choice": "none"}):
        assert options(**text, **asked)["guide_type"] == "json"
        # Under auto, Dynamo would read {"name": "Ann"} as a call.
        assert for_front_end(BODY | asked | text, "chat", None)["tool_choice"] == "none"
    assert for_front_end(BODY | asked | {"response_format": {"type": "text"}}, "chat", None).get("tool_choice") is None
    assert options(tool_choice=choice, **asked) == options(tools=tools, tool_choice=choice)
    assert "response_format" not in for_front_end(BODY | asked | {"tool_choice": choice}, "chat", None)
    with pytest.raises(RequestError, match="response_format has type 'xml'"):
        options(tool_choice=choice, tools=tools, response_format={"type": "xml"})
    with pytest.raises(RequestError, match=r"guided_\* cannot be combined with a tool_choice"):
        options(tool_choice=choice, tools=tools, guided_regex="a")


def test_greedy_sampling_becomes_a_temperature_of_zero():
    body = BODY | {"temperature": 0.9, "nvext": {"greed_sampling": True, "annotations": ["a:b"]}}
    sent = for_front_end(body, "chat", None)
    assert sent["temperature"] == 0
    assert sent["nvext"] == {"annotations": ["a:b", "max_tokens:5"], "extra_fields": ["engine_data"]}

    sent = for_front_end(body | {"nvext": {"greed_sampling": False}}, "chat", None)
    assert sent["temperature"] == 0.9
    assert "greed_sampling" not in sent["nvext"]


@pytest.mark.parametrize("name", ["use_raw_prompt", "max_thinking_tokens", "metadata_upload", "greed_sampling"])
def test_members_of_nvext_that_are_ignored_are_refused(name):
    with pytest.raises(RequestError, match=rf"^nvext\.{name} "):
        for_front_end(BODY | {"nvext": {name: 1}}, "chat", None)
