"""Responses of Triton: clients get their own request ids back, and all else as it was."""

from __future__ import annotations

import json

import httpx
import pytest

from pipeline.gateway.upstream import HEADER_LENGTH
from tests.unit.gateway.gateways import INFER, STREAM, Pieces, api_key, behind, events, send, spec_of

SPEC, HEADERS = spec_of(api_key("alice")), {"x-api-key": "alice"}


@pytest.mark.parametrize("tensors", [b"", b'\x00"id":"alice/x'])
def test_a_client_gets_its_own_id_back_and_all_else_as_it_was(tensors: bytes) -> None:
    sent, shown = (b'{"a":"\\"id\\":\\"alice/","id":"%s","b":NaN}' % name for name in (b"alice/mine", b"mine"))
    headers = {"content-type": "application/json"} | ({HEADER_LENGTH: str(len(sent))} if tensors else {})
    back = behind(lambda request: httpx.Response(200, headers=headers, stream=Pieces(sent[:20], sent[20:] + tensors)))

    answer = send(back, "POST", INFER, SPEC, json={"inputs": []}, headers=HEADERS)

    assert answer.content == shown + tensors
    assert answer.headers["content-length"] == str(len(shown + tensors))
    assert answer.headers.get(HEADER_LENGTH) == (str(len(shown)) if tensors else None)


def test_each_event_of_a_stream_has_the_clients_own_id() -> None:
    event = b'data: {"id":"alice/mine","text_output":"alice/"}\n\n'
    back = behind(lambda request: events(event, event + event, event[:9], event[9:]))

    answer = send(back, "POST", STREAM, SPEC, json={"text_input": "a"}, headers=HEADERS)

    assert answer.content == 4 * b'data: {"id":"mine","text_output":"alice/"}\n\n'


def test_lines_of_a_stream_end_at_line_feeds_only() -> None:
    """httpx's `iter_lines` ends a line at these characters, too."""
    event = 'data: {"text_output":"é\u2028\u2029\x85\\n"}\n\n'.encode()

    answer = send(behind(lambda request: events(event)), "POST", STREAM, json={"text_input": "a"})

    first, *others = answer.text.splitlines()
    assert json.loads(first.removeprefix("data: ")) == {"text_output": "é\u2028\u2029\x85\n"}
    assert others == [""]
