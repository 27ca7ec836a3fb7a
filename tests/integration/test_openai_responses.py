"""The Responses API, with OpenAI's client: the same outputs as through the chat API."""

from __future__ import annotations

import openai
import pytest
from pydantic import BaseModel

from tests.integration.openai_requests import MESSAGES, MODEL, chat

pytestmark = [pytest.mark.triton, pytest.mark.slow]

PROMPT = str(MESSAGES[0]["content"])
TOOL = {
    "type": "function",
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Answer(BaseModel):
    is_rat: bool


def respond(client: openai.OpenAI, **more: object) -> openai.types.responses.Response:
    asked = {"model": MODEL, "input": PROMPT, "max_output_tokens": 24, "temperature": 0} | more
    return client.responses.create(**asked)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 5}])
@pytest.mark.parametrize("strategy", ["none", "hybrid"])
def test_the_output_is_that_of_the_chat_api(client, sampling, strategy):
    extra = {"strategy": strategy} | {name: value for name, value in sampling.items() if name == "seed"}
    temperature = sampling.get("temperature", 0)
    same = chat(client, **sampling)

    response = respond(client, temperature=temperature, extra_body=extra)
    events = list(respond(client, temperature=temperature, extra_body=extra, stream=True))

    assert response.output_text == same.choices[0].message.content
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == response.output_text == events[-1].response.output_text
    is_cut = same.choices[0].finish_reason == "length"
    assert response.status == events[-1].response.status == ("incomplete" if is_cut else "completed")
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (
        same.usage.prompt_tokens,
        same.usage.completion_tokens,
    )
    assert events[-1].response.usage == response.usage


def test_a_conversation_goes_on_with_the_items_of_the_response(client):
    first = respond(client)
    more = {"role": "user", "content": "the tea"}

    response = respond(client, input=[{"role": "user", "content": PROMPT}, *first.output, more], instructions="rat")

    messages = [
        {"role": "system", "content": "rat"},
        *MESSAGES,
        {"role": "assistant", "content": first.output_text},
        more,
    ]
    assert response.output_text == chat(client, messages=messages).choices[0].message.content


def test_a_schema_and_a_call_are_enforced(client):
    parsed = client.responses.parse(model=MODEL, input=PROMPT, text_format=Answer, max_output_tokens=100, temperature=0)
    assert isinstance(parsed.output_parsed, Answer)

    asked = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 150}
    (call,) = respond(client, **asked).output
    *_, last = respond(client, stream=True, **asked)
    assert (call.type, call.name) == ("function_call", "weather")
    assert call.arguments in ('{"city": "Rome"}', '{"city": "Oslo"}', '{"city":"Rome"}', '{"city":"Oslo"}')
    assert [item.arguments for item in last.response.output] == [call.arguments]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "the sun"}
    assert respond(client, input=[{"role": "user", "content": PROMPT}, call, output], tools=[TOOL]).output


def test_log_probabilities_are_those_of_the_chat_api(client):
    same = chat(client, logprobs=True, top_logprobs=2)

    (message,) = respond(client, include=["message.output_text.logprobs"], top_logprobs=2).output

    found = message.content[0].logprobs
    assert [(entry.token, entry.logprob) for entry in found] == [
        (entry.token, entry.logprob) for entry in same.choices[0].logprobs.content
    ]
    assert all(len(entry.top_logprobs) == 2 for entry in found)


def test_bad_requests_have_a_status_and_a_sentence(client):
    for more, sentence in (
        ({"previous_response_id": "resp_1"}, "the server stores no responses"),
        ({"max_output_tokens": 0}, "max_output_tokens must be"),
        ({"input": "the rat " * 20_000}, "maximum context length"),
        ({"extra_body": {"nonsense": 1}}, "nonsense"),
    ):
        with pytest.raises(openai.BadRequestError, match=sentence):
            respond(client, **more)
