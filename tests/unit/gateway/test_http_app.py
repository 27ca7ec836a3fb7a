"""The gateway's HTTP side with a stand-in for the server behind it."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from pipeline.gateway import front_end
from pipeline.gateway.bodies import write_json
from pipeline.gateway.spec import TRITON_KEY_HEADER
from pipeline.gateway.tenants import Tenants
from pipeline.gateway.upstream import BrokenOff, Unreachable
from pipeline.request_ids import chosen_id
from tests.unit.gateway.gateways import (
    GENERATE,
    INFER,
    STREAM,
    Behind,
    Pieces,
    api_key,
    behind,
    client_of,
    events,
    json_answer,
    send,
    spec_of,
)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2/systemsharedmemory/status"),
        ("POST", "/v2/systemsharedmemory/region/x/register"),
        ("POST", "/v2/cudasharedmemory/unregister"),
        ("POST", "/v2/logging"),
        ("POST", "/v2/trace/setting"),
        ("POST", "/v2/models/lookahead_bls/trace/setting"),
        ("POST", "/v2/repository/index"),
        ("POST", "/v2/repository/models/lookahead_bls/unload"),
        ("GET", "/v2/models/lookahead_bls/config"),
        ("GET", "/v2/models/lookahead_bls/stats"),
        ("GET", "/v2/models/stats"),
        ("POST", "/v2/models/tensorrt_llm/generate"),
        ("POST", "/v2/models/tensorrt_llm/infer"),
        ("GET", "/v2/models/preprocessing"),
        ("GET", "/v2/models/preprocessing/ready"),
        ("POST", "/v2/models/lookahead_bls%2F..%2Ftensorrt_llm/generate"),
        ("POST", "/v2/models/lookahead_bls/versions/1%2F..%2F..%2Ftensorrt_llm/generate"),
        ("POST", "/v2/models/lookahead_bls/versions/x/generate"),
        ("GET", "/v1/models/..%2f..%2fmetrics"),
        ("GET", "/metrics"),
        ("GET", "/"),
    ],
)
def test_other_paths_do_not_exist_and_reach_no_server_behind(method, path):
    server = behind()

    answer = send(server, method, path, json={"max_tokens": 1} if method == "POST" else None)

    assert answer.status_code == 404
    assert "error" in answer.json()
    assert not server.requests


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", GENERATE, "POST"),
        ("GET", GENERATE, "POST"),
        ("POST", "/v2/health/live", "GET, HEAD"),
        ("GET", "/v1/chat/completions", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
    ],
)
def test_other_methods_of_a_path_are_refused_in_the_form_of_its_api(method, path, allowed):
    server = behind()

    answer = send(server, method, path)

    error = answer.json()["error"]
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    assert f"not {method}" in (error["message"] if path.startswith("/v1/") else error)
    assert not server.requests


def test_a_request_is_passed_on_with_tritons_key_and_without_the_clients_headers():
    server = behind()
    headers = {"cookie": "c", "authorization": "Bearer k", "x-forwarded-for": "1", TRITON_KEY_HEADER: "guess"}

    answer = send(server, "POST", GENERATE, json={"max_tokens": 3}, headers=headers)

    assert answer.json() == {"text_output": "x"}
    sent = server.requests[-1].headers
    assert sent[TRITON_KEY_HEADER] == "secret"
    assert not {"cookie", "authorization", "x-forwarded-for"} & set(sent)
    assert sent["x-request-id"] == answer.headers["x-request-id"]
    assert len(answer.headers["x-request-id"]) == 32
    assert server.body.items() >= {"max_tokens": 3, "namespace": ""}.items()


def test_request_ids_are_never_the_same():
    server = behind()

    ids = {send(server, "POST", GENERATE, json={}).headers["x-request-id"] for _ in range(5)}

    assert len(ids) == 5


@pytest.mark.parametrize(
    ("options", "status", "sentence"),
    [
        ({"content": b'{"a":' + b"[" * 150_000}, 400, "not JSON"),
        ({"content": b"x" * 300_000}, 413, "longer than 200000 bytes"),
        ({"content": b"\x1f\x8b", "headers": {"content-encoding": "gzip"}}, 415, "compressed"),
        ({"json": {"max_tokens": "x"}}, 400, 'max_tokens is "x"'),
        *(
            ({"json": {}, "headers": {"x-request-timeout": invalid}}, 400, f"x-request-timeout is '{invalid}'")
            for invalid in ("soon", "-1", "0", "0e9", "nan", "inf", "1_0", "1e1_0", "0x10")
        ),
    ],
)
def test_a_bad_request_is_refused_before_it_is_passed_on(options, status, sentence):
    server = behind()

    answer = send(server, "POST", GENERATE, spec_of(max_body_bytes=200_000), **options)

    assert answer.status_code == status
    assert sentence in answer.json()["error"]
    assert answer.headers.get("accept-encoding") == ("identity" if status == 415 else None)
    assert all(request.method == "GET" for request in server.requests)


@pytest.mark.parametrize("path", [GENERATE, STREAM, INFER, "/v1/completions", "/v1/chat/completions"])
def test_without_a_known_key_nothing_is_passed_on(path):
    server = behind()
    for headers in ({}, {"authorization": "Bearer mallory"}, {"authorization": "Basic alice"}, {"x-api-key": ""}):
        answer = send(server, "POST", path, spec_of(api_key("alice")), json={}, headers=headers)
        assert answer.status_code == 401
    assert not server.requests
    assert send(server, "GET", "/v2", spec_of(api_key("alice"))).status_code == 401
    assert send(server, "GET", "/v1/models", spec_of(api_key("alice"))).status_code == 401


@pytest.mark.parametrize("headers", [{"authorization": "Bearer alice"}, {"x-api-key": "alice"}])
def test_with_a_key_the_request_goes_on_in_the_tenants_namespace(headers):
    server = behind()

    answer = send(server, "POST", GENERATE, spec_of(api_key("alice")), json={"namespace": "x"}, headers=headers)

    assert answer.status_code == 200
    assert server.body["namespace"] == "alice/x"


@pytest.mark.parametrize("path", [GENERATE, INFER])
@pytest.mark.parametrize("chosen", [{"id": 'x#"é'}, {}])
@pytest.mark.parametrize("keys", [(api_key("alice"),), ()])
def test_a_client_gets_the_id_back_that_it_chose(path, chosen, keys):
    def echo(request):
        return httpx.Response(200, stream=Pieces(write_json({"id": server.body["id"], "a": 1})))

    server = behind(echo)

    asked = {"json": chosen | {"inputs": []}, "headers": {"x-api-key": "alice"}}
    answer = send(server, "POST", path, spec_of(*keys), **asked)

    assert chosen_id(server.body["id"]) == f"{'alice/' if keys else ''}{chosen.get('id', '')}"
    assert answer.json() == chosen | {"a": 1}


def test_whether_the_server_is_up_needs_no_key():
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/lookahead_bls/ready"):
        assert send(behind(), "GET", path, spec_of(api_key("alice"))).status_code == 200


@pytest.mark.parametrize("path", ["/v2", "/v2/health/live", "/v2/models/lookahead_bls/versions/1/ready"])
def test_the_server_behind_gets_the_path_without_a_line_end(path):
    server = behind()
    for end in ("", "%0A"):
        assert send(server, "GET", path + end).status_code == 200
        assert server.requests[-1].url.path == path


def test_a_stream_comes_piece_by_piece_as_it_was_sent():
    pieces = [b'data: {"text_output":"a"}\n\n', b'data: {"text_out', b'put":"b"}\n\ndata: {"text_output":"c"}\n\n']

    answer = send(behind(lambda request: events(*pieces)), "POST", STREAM, json={})

    assert answer.content == b"".join(pieces)
    assert answer.headers["content-type"] == "text/event-stream"


@pytest.mark.parametrize(
    ("answer", "status", "sentence"),
    [
        (lambda r: json_answer(400, {"error": "busy: 8 requests are waiting already"}), 503, "busy: 8"),
        (lambda r: json_answer(200, {"error": "top_k is -1"}), 400, "top_k is -1"),
        (lambda r: json_answer(500, {"error": "internal error: KeyError()"}), 500, "its log has the reason"),
        (lambda r: events(b'data: {"error":"top_k is -1"}\n\n'), 400, "top_k is -1"),
        (lambda r: events(b'data: {"error":"Stub process is not healthy"}\n\n'), 503, "starting again"),
        (lambda r: events(BrokenOff("gone")), 503, "starting again"),
    ],
)
def test_errors_have_the_status_that_they_mean(answer, status, sentence):
    found = send(behind(answer), "POST", STREAM, json={})

    assert found.status_code == status
    assert sentence in found.json()["error"]
    assert ("retry-after" in found.headers) == (status == 503)


@pytest.mark.parametrize(
    ("last", "sentence"),
    [
        (b'data: {"error":"Stub process is not healthy"}\n\n', "starting again"),
        (BrokenOff("gone"), "starting again"),
    ],
)
def test_an_error_in_a_stream_that_has_begun_is_its_last_event(last, sentence):
    first = b'data: {"text_output":"a"}\n\n'

    answer = send(behind(lambda request: events(first, last)), "POST", STREAM, json={})

    assert answer.status_code == 200
    assert answer.content.startswith(first)
    assert sentence in json.loads(answer.content.removeprefix(first).removeprefix(b"data: "))["error"]


def test_a_server_that_is_not_there_is_503_with_retry_after(monkeypatch):
    monkeypatch.setattr(front_end, "_PATIENCE_S", 0.0)

    def refuse(request: httpx.Request) -> httpx.Response:
        raise Unreachable("refused")

    for method, path in (("POST", GENERATE), ("GET", "/v2"), ("POST", "/v1/completions"), ("GET", "/v1/models")):
        answer = send(Behind(refuse), method, path, json={})
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0
    assert send(Behind(refuse, is_ready=None), "GET", "/v2/health/ready").status_code == 503


@pytest.mark.parametrize("path", [GENERATE, "/v1/completions"])
@pytest.mark.parametrize("invalid", [b"x" * 600, "é".encode()])
def test_a_request_stays_part_of_its_trace(path, invalid):
    server = behind()

    send(server, "POST", path, json={}, headers=[("traceparent", "00-a-b-01"), (b"tracestate", invalid)])

    assert server.requests[-1].headers["traceparent"] == "00-a-b-01"
    assert "tracestate" not in server.requests[-1].headers


def test_a_request_that_takes_too_long_is_ended():
    async def slow(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(60)
        raise AssertionError("it was not ended")

    for spec, headers in ((spec_of(request_timeout_s=0.05), {}), (spec_of(), {"x-request-timeout": "0.05"})):
        answer = send(Behind(slow), "POST", GENERATE, spec, json={}, headers=headers)
        assert answer.status_code == 504
        assert "longer than 0.05 s" in answer.json()["error"]
        assert answer.headers["x-should-retry"] == "false", "OpenAI's clients send it again twice"


async def test_an_admission_ends_with_its_request_however_it_ends():
    spec = spec_of(api_key("alice", max_concurrent_requests=1))
    tenants = Tenants(spec.api_keys, spec.config)
    answers = iter(
        [
            json_answer(200, {}),
            json_answer(500, {"error": "x"}),
            events(b"data: {}\n\n", BrokenOff("gone")),
            json_answer(200, {}),
        ]
    )
    async with client_of(behind(lambda request: next(answers)), spec, tenants) as client:
        for status in (200, 500, 200, 200):
            answer = await client.post(GENERATE, json={}, headers={"x-api-key": "alice"})
            assert answer.status_code == status
            assert tenants.num_running == 0
