"""Requests of the Responses API become requests of the chat API."""

from __future__ import annotations

import pytest

from pipeline.errors import RequestError
from pipeline.gateway.openai_fields import for_front_end
from pipeline.gateway.responses_request import chat_request, response_head

CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}", "status": "completed"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SCHEMA = {"type": "object", "properties": {}}
TOOL = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}
CHAT_TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}


def test_a_text_is_a_message_of_the_user_after_the_instructions():
    assert chat_request({"model": "m", "input": "Hello", "instructions": "Be brief."}) == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
    }


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"role": "user", "content": "a"}, {"role": "user", "content": "a"}),
        ({"type": "message", "role": "developer", "content": "a"}, {"role": "developer", "content": "a"}),
        (
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"role": "user", "content": "a"},
        ),
        (
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ),
        (
            {
                "type": "message",
                "id": "msg_1",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}],
            },
            {"role": "assistant", "content": "a"},
        ),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "assistant", "content": "no"},
        ),
        (OUTPUT, {"role": "tool", "tool_call_id": "c1", "content": "sunny"}),
        (CALL, {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]}),
    ],
)
def test_an_item_is_a_message(item, message):
    assert chat_request({"input": [item]})["messages"] == [message]


def test_a_text_and_the_calls_after_it_are_one_message():
    text = {"role": "assistant", "content": "I look it up."}
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": []}
    other = CALL | {"call_id": "c2"}

    messages = chat_request({"input": [text, reasoning, CALL, other, OUTPUT, CALL]})["messages"]

    assert [message["role"] for message in messages] == ["assistant", "tool", "assistant"]
    assert messages[0]["content"] == "I look it up."
    assert [call["id"] for call in messages[0]["tool_calls"]] == ["c1", "c2"]
    assert messages[2]["tool_calls"] == [CHAT_CALL]


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"max_output_tokens": 7}, {"max_completion_tokens": 7}),
        ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
        (
            {"stream": True, "stream_options": {"include_obfuscation": False}},
            {"stream_options": {"include_usage": True}},
        ),
        ({"text": {"format": {"type": "text"}}}, {"response_format": {"type": "text"}}),
        ({"text": {"verbosity": "medium"}}, {}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
                }
            },
        ),
        ({"tools": [TOOL]}, {"tools": [CHAT_TOOL]}),
        ({"tool_choice": "required"}, {"tool_choice": "required"}),
        (
            {"tool_choice": {"type": "function", "name": "f"}},
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        ),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}},
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
                }
            },
        ),
        ({"include": ["message.output_text.logprobs"]}, {"logprobs": True, "top_logprobs": 0}),
        ({"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
        ({"include": ["reasoning.encrypted_content"]}, {}),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"store": True, "metadata": {"a": "b"}, "truncation": "disabled", "service_tier": "auto"}, {}),
        ({"previous_response_id": None, "background": False}, {}),
        ({"temperature": 0, "strategy": "trie", "seed": 3}, {"temperature": 0, "strategy": "trie", "seed": 3}),
    ],
)
def test_options_have_the_names_of_the_chat_api(given, sent):
    messages = [{"role": "user", "content": "a"}]
    stream = {name: given[name] for name in ("stream",) if name in given}

    chat = chat_request({"input": "a"} | given)

    assert chat == {"messages": messages} | stream | sent
    assert for_front_end(chat | {"tools": [CHAT_TOOL]}, "chat", None)["messages"] == messages


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({}, "input must be a text or a list of items; found null"),
        ({"input": 3}, "input must be a text or a list of items; found 3"),
        ({"input": ["a"]}, r'input\[0\] must be a message, a function_call or a function_call_output; found "a"'),
        ({"input": [{"type": "item_reference", "id": "x"}]}, r'input\[0\] must be .*; found "item_reference"'),
        ({"input": [{"role": "tool", "content": "a"}]}, r'input\[0\].role must be one of user, .*; found "tool"'),
        ({"input": [{"role": "user"}]}, r"input\[0\].content must be a text or a list of parts; found null"),
        ({"input": [{"role": "user", "content": []}]}, r"input\[0\].content is an empty list"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            r'input\[0\].content\[0\] has type "input_image"; this model reads text',
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            r"input\[0\].content\[0\].text must be a text; found null",
        ),
        ({"input": [CALL | {"arguments": {}}]}, r"input\[0\].arguments must be a text; found \{\}"),
        ({"input": [{"type": "function_call_output", "output": "a"}]}, r"input\[0\].call_id must be a text"),
        ({"instructions": 3}, "^instructions must be a text; found 3"),
        ({"max_output_tokens": 0}, "max_output_tokens must be a whole number of at least 1; found 0"),
        ({"max_output_tokens": True}, "max_output_tokens must be a whole number"),
        ({"previous_response_id": "resp_1"}, "previous_response_id is not supported: the server stores no responses"),
        ({"conversation": {"id": "c"}}, "conversation is not supported"),
        ({"background": True}, "background is not supported"),
        ({"messages": []}, "messages is not a field of the Responses API; send input"),
        ({"max_tokens": 3}, "max_tokens is not a field of the Responses API; send max_output_tokens"),
        ({"truncation": "auto"}, 'truncation must be "disabled"'),
        ({"text": "a"}, 'text must be an object .*; found "a"'),
        ({"text": {"verbosity": "low"}}, "text.verbosity is not supported"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format must have type text, json_object or json_schema"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format must be .*schema"),
        ({"tools": {}}, "tools must be a list"),
        ({"tools": [{"type": "web_search"}]}, r'tools\[0\] must have type function: .*; found "web_search"'),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice must have type function"),
        ({"include": "all"}, "include must be a list"),
        ({"reasoning": "low"}, "reasoning must be an object"),
    ],
)
def test_what_the_server_cannot_do_is_refused(body, sentence):
    with pytest.raises(RequestError, match=sentence):
        chat_request(body if not body or "input" in body else {"input": "a"} | body)


def test_a_response_repeats_the_request():
    head = response_head({"model": "m", "input": "a", "temperature": 0, "tools": [TOOL], "store": True, "top_p": None})

    assert (head["model"], head["temperature"], head["tools"]) == ("m", 0, [TOOL])
    assert (head["top_p"], head["store"], head["tool_choice"]) == (1.0, False, "auto")
