"""Changed responses, whole ones and streams: figures of drafts where vLLM has them, log probabilities as OpenAI's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from pipeline.gateway.refusal import Refusal
from pipeline.gateway.rewriting import DRAFT_FIGURES, Rewrite, RewritingResponder, alternatives, log_probs, own_id
from pipeline.gateway.tenants import Tenant
from pipeline.gateway.upstream import HEADER_LENGTH

FIGURES = {"num_spec_steps": 2}
SENT: dict[str, Any] = {"id": "x", "nvext": {"engine_data": {"draft_statistics": 1, "speculative_decoding": FIGURES}}}
SHOWN = {"id": "x", "nvext": {"engine_data": {"draft_statistics": 1}}, "metrics": {"speculative_decoding": FIGURES}}


class Answer:
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.body = b""
        self.ended = False

    async def start(self, status: int, headers: Mapping[str, str], is_stream: bool = False) -> None:
        self.headers = dict(headers)

    async def piece(self, data: bytes) -> None:
        self.body += data

    async def end(self) -> None:
        self.ended = True

    async def refuse(self, refusal: Refusal, closes: bool = False) -> None:
        self.body = refusal.sentence.encode()


def forwarded(
    pieces: list[bytes],
    is_stream: bool,
    rewrite: Rewrite = DRAFT_FIGURES,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    answer = Answer()

    async def run() -> None:
        responder = RewritingResponder(answer, rewrite)
        await responder.start(200, {"content-length": str(sum(map(len, pieces)))} | dict(headers or {}), is_stream)
        for piece in pieces:
            await responder.piece(piece)
        await responder.end()

    asyncio.run(run())
    assert answer.ended
    return answer


def test_a_whole_response_has_them_at_its_root() -> None:
    body = json.dumps(SENT).encode()
    answer = forwarded([body[:9], body[9:]], is_stream=False)

    assert json.loads(answer.body) == SHOWN
    assert answer.headers["content-length"] == str(len(answer.body))


def test_a_stream_has_them_in_the_event_that_brought_them() -> None:
    first, last = b'data: {"id":"x"}\n\n', b"data: [DONE]\n\n"
    answer = forwarded([first + b"data: " + json.dumps(SENT).encode() + b"\n\n", last], is_stream=True)

    assert answer.body.startswith(first)
    assert answer.body.endswith(last)
    assert json.loads(answer.body[len(first) + 6 : -len(last)]) == SHOWN


@pytest.mark.parametrize("value", [{"text": '"speculative_decoding"'}, {"nvext": None, "x": "speculative_decoding"}])
def test_a_text_with_their_name_stays_as_it_is(value: dict[str, Any]) -> None:
    body = json.dumps(value).encode()

    assert json.loads(forwarded([body], is_stream=False).body) == value
    assert json.loads(forwarded([b"data: " + body + b"\n\n"], is_stream=True).body[6:]) == value


def test_alternatives_of_completions_become_objects_and_tokens_get_their_place_in_the_text() -> None:
    alternatives = [[{"token": "ab", "logprob": -1.0, "bytes": [97]}, {"token": "ab", "logprob": -2.0}], []]
    logprobs = {"tokens": ["ab", "c"], "top_logprobs": alternatives, "text_offset": []}
    shown = {"tokens": ["ab", "c"], "top_logprobs": [{"ab": -1.0}, {}], "text_offset": [0, 2]}
    body = json.dumps({"choices": [{"index": 0, "text": "abc", "logprobs": logprobs}]}).encode()

    assert json.loads(forwarded([body], False, log_probs()).body)["choices"][0]["logprobs"] == shown
    none = b'{"choices":[{"index":0,"text":"\\"text_offset\\"","logprobs":null}]}'
    assert forwarded([none], False, log_probs()).body == none


def test_offsets_go_on_along_the_stream_of_each_choice() -> None:
    def event(index: int, *tokens: str) -> bytes:
        choice = {"index": index, "logprobs": {"tokens": tokens, "top_logprobs": [], "text_offset": []}}
        return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"

    sent = [event(0, "ab"), event(1, "c") + event(0, "", "d"), event(1, "e"), b"data: [DONE]\n\n"]
    streamed = forwarded(sent, True, log_probs()).body

    *found, last = (part.removeprefix(b"data: ") for part in streamed.removesuffix(b"\n\n").split(b"\n\n"))
    assert last == b"[DONE]"
    offsets = [json.loads(part)["choices"][0]["logprobs"]["text_offset"] for part in found]
    assert offsets == [[0], [0], [2, 2], [1]]


@pytest.mark.parametrize("num_asked", [0, 1, 2])
def test_a_chat_has_as_many_alternatives_as_were_asked_for(num_asked: int) -> None:
    found = [{"token": "a", "logprob": -1.0}, {"token": "b", "logprob": -2.0}]
    choice = {"index": 0, "logprobs": {"content": [{"token": "b", "logprob": -2.0, "top_logprobs": found}]}}
    body = json.dumps({"choices": [choice, {"index": 1, "logprobs": None}]}, separators=(",", ":")).encode()

    shown = json.loads(forwarded([body], False, alternatives(num_asked)).body)["choices"][0]["logprobs"]["content"][0]
    assert shown == {"token": "b", "logprob": -2.0, "top_logprobs": found[:num_asked]}


OWN_ID = own_id(Tenant("alice", "alice/", 1, None))


@pytest.mark.parametrize("tensors", [b"", b'\x00"id":"alice/x'])
def test_a_client_gets_its_own_id_back_and_all_else_as_it_was(tensors: bytes) -> None:
    sent, shown = (b'{"a":"\\"id\\":\\"alice/","id":"%s","b":NaN}' % name for name in (b"alice/mine", b"mine"))
    headers = {HEADER_LENGTH: str(len(sent))} if tensors else {}

    answer = forwarded([sent[:20], sent[20:] + tensors], False, OWN_ID, headers)

    assert answer.body == shown + tensors
    assert answer.headers["content-length"] == str(len(shown + tensors))
    assert answer.headers.get(HEADER_LENGTH) == (str(len(shown)) if tensors else None)


def test_each_event_of_a_stream_has_the_clients_own_id_and_parts_of_a_long_one_stay_as_they_are() -> None:
    event = b'data: {"id":"alice/mine","text_output":"alice/"}\n\n'
    shown = b'data: {"id":"mine","text_output":"alice/"}\n\n'

    assert forwarded([event, event + event, event[:-9], event[-9:]], True, OWN_ID).body == 3 * shown + event
