"""Error messages to clients for errors of the server."""

from __future__ import annotations

import json

import pytest

from pipeline.gateway.upstream_errors import refusal_in_chunk, refusal_in_event, refusal_of, text_of_body

SENTENCE = "max_tokens is -8; it must be at least 1"


@pytest.mark.parametrize(
    ("status", "text", "expected", "shown"),
    [
        (400, SENTENCE, 400, SENTENCE),
        (400, f"[request id: <id_unknown>] {SENTENCE}", 400, SENTENCE),
        (400, "Validation: Logprobs must be between 0 and 5, got 6", 400, "Logprobs must be between"),
        (400, "busy: 128 requests are waiting already; send the request again later", 503, "busy: 128"),
        (400, "[request id: 3] Exceeds maximum queue size", 503, "Exceeds maximum queue size"),
        (400, "the server is being stopped or exchanged for another", 503, "the server is being"),
        (500, "Unable to parse 'data': attempt to access JSON non-number", 400, "Unable to parse 'data'"),
        (500, "failed to get request params.: attempt to get members for non-object", 400, "get request params"),
        (500, "failed to parse the request JSON buffer: Invalid value. at 0", 400, "failed to parse the request"),
        (400, "prompts with and/or without <|im_start|> are fine", 400, "and/or without <|im_start|>"),
        (400, "no guide: Pointer '/definitions/a/b' does not exist", 400, "'/definitions/a/b'"),
        (400, "no guide: Resource 'https://a.example/b/c' is not present", 400, "'https://a.example/b/c'"),
        (404, "Request for unknown model: 'x' is not found", 404, "unknown model"),
        (501, "doesn't support models with decoupled transaction policy", 400, "policy; send it as a gRPC stream"),
    ],
)
def test_sentences_for_clients_come_through_with_the_status_that_they_mean(status, text, expected, shown):
    refusal = refusal_of(status, text, "f00")

    assert refusal.status == expected
    assert shown in refusal.sentence
    assert "Validation" not in refusal.sentence
    assert (refusal.retry_after_s is not None) == (expected == 503)


def test_a_wrong_field_is_named_without_a_position_in_another_body() -> None:
    text = "Failed to deserialize the JSON body into the target type: missing field `messages` at line 1 column 154"
    assert refusal_of(400, text, "f00").sentence == "missing field `messages`"


@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [
        (500, "internal error: KeyError('x')", 500),
        (400, "internal error: KeyError('x')", 500),
        (400, "Unable to open the memory region la0123456789ab_shm_region_3", 503),
        (400, "Stub process 'tensorrt_llm_0_0' is not healthy.", 503),
        (400, "Failed to process the request(s) for model instance 'lookahead_bls_0_0', message: x", 400),
        (400, "At:\n  /srv/app/model.py(33): execute", 400),
        (400, "Pointer '/a/b' and /srv/app/x", 400),
        (500, "the region la0123456789ab is gone", 500),
        (503, "anything", 503),
        (500, "Failed to parse chat completion response", 500),  # Dynamo's, of a worker that ended
    ],
)
def test_internal_text_stays_inside(status, text, expected):
    refusal = refusal_of(status, text, "f00")

    assert refusal.status == expected
    for word in ("la0123456789ab", "Stub", "KeyError", "model.py", "/srv/", "instance", "anything"):
        assert word not in refusal.sentence
    assert refusal.retry_after_s is not None or "f00" in refusal.sentence


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":"why"}',
        b'data: {"error":"why"}',
        b'{"error":{"message":"why","code":400}}',
        b'{"message":"why","type":"Bad Request"}',
        b"why",
    ],
)
def test_the_text_of_an_error_is_found_in_every_form(body):
    assert text_of_body(body) == "why"


def test_an_event_is_an_error_only_where_it_begins_with_one():
    found = refusal_in_event(b'data: {"error":"why"}\n\n', "id")
    assert found is not None
    assert (found.status, found.sentence) == (400, "why")
    assert refusal_in_event(b'data: {"text_output":"the \\"error\\""}\n\n', "id") is None
    assert refusal_in_event(b": comment\n\n", "id") is None


@pytest.mark.parametrize(("status", "retry_after_s"), [(400, None), (503, 2)])
def test_a_refusal_of_a_worker_is_found_and_text_of_the_model_is_none(status, retry_after_s):
    data = {"engine_data": {"refusal": {"status": status, "message": "busy: why" if status == 503 else "why"}}}

    found = refusal_in_chunk({"choices": [], "nvext": data}, "id")

    assert found is not None
    assert (found.status, found.retry_after_s) == (status, retry_after_s)
    assert refusal_in_chunk({"choices": [{"text": json.dumps(data), "finish_reason": "stop"}]}, "id") is None


@pytest.mark.parametrize(
    ("chunk", "status"),
    [
        ({"error": {"message": "why", "code": 500}}, 500),
        ({"error": {"message": "why", "code": 503}}, 503),
        ({"error": {"message": "why", "code": "unknown"}}, 400),
        ({"error": {"message": "why", "code": 422}}, 400),
        ({"choices": [{"finish_reason": "content_filter"}]}, 500),
    ],
)
def test_errors_of_the_front_end_and_faults_of_a_worker_are_found(chunk, status):
    found = refusal_in_chunk(chunk, "id")
    assert found is not None
    assert found.status == status
