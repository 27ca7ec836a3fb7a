"""Changed chunks: figures of drafts where vLLM has them, log probabilities as OpenAI's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.gateway.openai_body import checked_openai
from pipeline.gateway.rewriting import alternatives, log_probs, move_figures, with_end_apart
from pipeline.gateway.tenants import Tenant

FIGURES = {"num_spec_steps": 2}


def test_figures_of_drafts_move_to_the_root() -> None:
    sent = {"id": "x", "nvext": {"engine_data": {"draft_statistics": 1, "speculative_decoding": FIGURES}}}
    shown = {"id": "x", "nvext": {"engine_data": {"draft_statistics": 1}}, "metrics": {"speculative_decoding": FIGURES}}

    assert move_figures(sent) == shown


@pytest.mark.parametrize("value", [{"text": '"speculative_decoding"'}, {"nvext": None}, {"nvext": {"timing": 1}}])
def test_a_chunk_without_them_stays_as_it_is(value: dict[str, Any]) -> None:
    assert move_figures(dict(value)) == value


def test_a_choice_of_completions_has_the_members_that_are_null() -> None:
    """The front end leaves them out, and strict clients require them. A chat's choices have them."""
    tenant = Tenant("everyone", "", 1, None)
    (change,) = checked_openai("completions", b'{"model": "m", "prompt": "a"}', tenant).rewrites

    assert change({"choices": [{"index": 0, "text": "a"}, {"index": 1, "text": "b", "finish_reason": "stop"}]}) == {
        "choices": [
            {"index": 0, "text": "a", "finish_reason": None, "logprobs": None},
            {"index": 1, "text": "b", "finish_reason": "stop", "logprobs": None},
        ]
    }
    assert change({"usage": {}}) == {"usage": {}}
    assert not checked_openai("chat", b'{"model": "m", "messages": []}', tenant).rewrites


def test_alternatives_of_completions_become_objects_and_tokens_get_their_place_in_the_text() -> None:
    alternatives = [
        [{"token": token, "logprob": value} for token, value in (("ab", -1.0), ("x", -2.0), ("ab", -3.0))],
        [],
    ]
    logprobs = {"tokens": ["ab", "c"], "top_logprobs": alternatives, "text_offset": []}
    shown = {"tokens": ["ab", "c"], "top_logprobs": [{"ab": -1.0, "x": -2.0}, {}], "text_offset": [0, 2]}

    assert log_probs()({"choices": [{"index": 0, "text": "abc", "logprobs": logprobs}]})["choices"] == [
        {"index": 0, "text": "abc", "logprobs": shown}
    ]
    assert list(shown["top_logprobs"][0]) == list(logprobs["top_logprobs"][0])  # most probable one first
    none = {"choices": [{"index": 0, "text": "text_offset", "logprobs": None}]}
    assert log_probs()(none) == {"choices": [{"index": 0, "text": "text_offset", "logprobs": None}]}
    assert log_probs()({"choices": []}) == {"choices": []}


def test_a_token_has_the_value_that_it_has_among_the_alternatives() -> None:
    """The front end writes the shortest text of 32 bits for one, and all digits for the other."""
    tops = [[{"token": "-", "logprob": -0.7434799671173096}]]
    found = {"tokens": ["-"], "token_logprobs": [-0.74347997], "top_logprobs": tops}

    (choice,) = log_probs()({"choices": [{"index": 0, "logprobs": found}]})["choices"]

    assert choice["logprobs"]["top_logprobs"] == [{"-": choice["logprobs"]["token_logprobs"][0]}]


@pytest.mark.parametrize("without", [{"top_logprobs": []}, {"top_logprobs": None}, {}])
def test_a_completion_without_alternatives_has_each_token_with_its_own_log_probability(without: dict[str, Any]) -> None:
    """As vLLM with logprobs 0: clients index top_logprobs by the position of the token."""
    found = {"tokens": ["ab", "c"], "token_logprobs": [-1.0, -2.0], **without}

    (choice,) = log_probs()({"choices": [{"index": 0, "logprobs": found}]})["choices"]

    assert choice["logprobs"]["top_logprobs"] == [{"ab": -1.0}, {"c": -2.0}]
    none = {"tokens": None, "token_logprobs": None, **without}
    (choice,) = log_probs()({"choices": [{"index": 0, "logprobs": none}]})["choices"]
    assert choice["logprobs"]["top_logprobs"] == []


def test_tool_calls_of_a_stream_have_no_empty_content() -> None:
    body = {"messages": [], "tools": [{"type": "function", "function": {"name": "f"}}], "stream": True}
    (change,) = checked_openai("chat", json.dumps(body).encode(), Tenant("everyone", "", 1, None)).rewrites
    call = {"role": "assistant", "content": "", "tool_calls": [{"index": 0}]}

    chunk = change({"choices": [{"index": 0, "delta": call}, {"index": 1, "delta": {"content": "a"}}, {"index": 2}]})

    assert [choice.get("delta") for choice in chunk["choices"]] == [call | {"content": None}, {"content": "a"}, None]
    assert change({"usage": {}}) == {"usage": {}}


def test_offsets_go_on_along_the_stream_of_each_choice() -> None:
    rewrite = log_probs()

    def offsets(index: int, *tokens: str) -> list[int]:
        values = {"tokens": tokens, "token_logprobs": [-1.0] * len(tokens), "top_logprobs": [], "text_offset": []}
        chunk = rewrite({"choices": [{"index": index, "logprobs": values}]})
        found: list[int] = chunk["choices"][0]["logprobs"]["text_offset"]
        return found

    assert [offsets(0, "ab"), offsets(1, "c"), offsets(0, "", "d"), offsets(1, "e")] == [[0], [0], [2, 2], [1]]


@pytest.mark.parametrize("num_asked", [0, 1, 2])
def test_a_chat_has_as_many_alternatives_as_were_asked_for(num_asked: int) -> None:
    found = [{"token": "a", "logprob": -1.0}, {"token": "b", "logprob": -2.0}]
    choice = {"index": 0, "logprobs": {"content": [{"token": "b", "logprob": -2.0, "top_logprobs": found}]}}

    chunk = alternatives(num_asked)({"choices": [choice, {"index": 1, "logprobs": None}]})

    assert chunk["choices"][0]["logprobs"]["content"] == [
        {"token": "b", "logprob": -2.0, "top_logprobs": found[:num_asked]}
    ]


def test_the_finish_reason_of_a_streamed_call_comes_in_a_chunk_of_its_own() -> None:
    """OpenAI's client reports a call as done then. Dynamo sends both in one chunk."""
    call = {"index": 1, "delta": {"tool_calls": [{"index": 0}]}, "logprobs": None}
    text = {"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}
    end = {"index": 1, "delta": {}, "finish_reason": "tool_calls", "logprobs": None}
    chunk = {"id": "x", "choices": [text, call | {"finish_reason": "tool_calls"}]}

    assert with_end_apart(chunk) == [
        {"id": "x", "choices": [text, call | {"finish_reason": None}]},
        {"id": "x", "choices": [end]},
    ]
    for same in ({"choices": [text]}, {"choices": [call]}, {"choices": []}, {"usage": {}}):
        assert with_end_apart(same) == [same]
