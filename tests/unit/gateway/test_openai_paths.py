"""The OpenAI API behind the gateway's HTTP side, with a stand-in for the server behind it."""

from __future__ import annotations

import json

import httpx
import pytest

from pipeline.gateway import front_end
from tests.unit.gateway.gateways import (
    GENERATE,
    MAX_SEQ_LEN,
    Behind,
    api_key,
    behind,
    events,
    json_answer,
    send,
    spec_of,
    streamed,
)

MESSAGES = [{"role": "user", "content": "Hello"}]


def test_openai_errors_have_openais_form():
    answer = send(behind(), "POST", "/v1/chat/completions", spec_of(api_key("alice")), json={})

    assert answer.json()["error"] == {
        "message": "an API key is needed; send it as `Authorization: Bearer KEY`",
        "type": "authentication_error",
        "code": "invalid_api_key",
        "param": None,
    }


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("completions", {"n": 0}, "n"),
        ("completions", {"temperature": 3}, "temperature"),
        ("completions", {"echo": True}, "echo"),
        ("completions", {"prompt": [-1]}, "prompt"),
        ("chat/completions", {"messages": [{"role": "boss"}]}, "messages[0].role"),
        ("chat/completions", {"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ("chat/completions", {"response_format": {"type": "json_object"}, "guided_regex": "a"}, None),
        ("responses", {"input": 5}, "input"),
        ("responses", {"previous_response_id": "resp_1"}, "previous_response_id"),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
    ],
)
def test_an_error_names_the_field(path, body, param):
    answer = send(behind(), "POST", f"/v1/{path}", json={"model": "m"} | body)

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert answer.json()["error"]["message"].startswith(f"{param or 'response_format and guided_*'} ")


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/chat", "/v1/", "/v1/models/a/b/c", "/v1/responses/resp_1"])
def test_paths_that_are_not_served_have_openais_form_too(path):
    answer = send(behind(), "POST", path, json={})

    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_session_of_a_client_is_none_of_another_tenants():
    server = behind()
    spec = spec_of(api_key("alice"), api_key("bob"))
    for key, session in (("alice", "x"), ("alice", "x"), ("alice", "y"), ("bob", "x"), ("bob", None)):
        headers = {"x-api-key": key, "x-dynamo-session-id": "guess"} | (
            {} if session is None else {"x-session-id": session}
        )
        send(server, "POST", "/v1/completions", spec, json={}, headers=headers)

    sent = [request.headers.get("x-dynamo-session-id") for request in server.requests]
    assert sent[0] == sent[1]
    assert len(set(sent)) == 4
    assert sent[-1] is None
    assert "guess" not in sent


def no_worker(request: httpx.Request) -> httpx.Response:
    return json_answer(500, {"message": "Failed to generate completions", "code": 500})


def no_model(request: httpx.Request) -> httpx.Response:
    return json_answer(404, {"error": {"message": "Model not found", "code": 404}})


def no_endpoint(request: httpx.Request) -> httpx.Response:
    return httpx.Response(404)


@pytest.mark.parametrize("absent", [no_worker, no_model, no_endpoint])
def test_a_completion_is_sent_again_while_its_worker_cannot_be_reached(absent):
    back = behind(lambda request: absent(request) if len(back.requests) < 3 else streamed(a=1))

    answer = send(back, "POST", "/v1/chat/completions", json={"model": "m", "messages": []})

    assert (answer.status_code, answer.json()["a"]) == (200, 1)
    sent = [request.content for request in back.requests if request.url.path == "/v1/chat/completions"]
    assert len(sent) >= 2
    assert len(set(sent)) == 1


def test_a_model_that_is_served_and_does_not_come_back_is_unavailable(monkeypatch):
    monkeypatch.setattr(front_end, "_PATIENCE_S", 0.0)
    assert send(behind(no_endpoint), "POST", "/v1/chat/completions", json={"model": "m"}).status_code == 503
    assert send(behind(no_model), "GET", "/v1/models/m").status_code == 503


def test_a_prompt_that_is_too_long_has_openais_code():
    sentence = "This model's maximum context length is 512 tokens. However, your messages resulted in 3013 tokens."
    back = behind(lambda request: json_answer(400, {"message": sentence, "code": 400}))
    answer = send(back, "POST", "/v1/chat/completions", json={"model": "m", "messages": []})

    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": sentence,
        "type": "invalid_request_error",
        "code": "context_length_exceeded",
        "param": None,
    }


LONG = "a " * 8 * MAX_SEQ_LEN


@pytest.mark.parametrize(
    ("path", "body", "asked"),
    [
        ("/v1/completions", {"prompt": LONG}, {"text_input": LONG}),
        ("/v1/completions", {"prompt": ["b", LONG]}, {"text_input": LONG}),
        ("/v1/completions", {"prompt": LONG, "messages": 5}, {"text_input": LONG}),
        ("/v1/completions", {"prompt": LONG, "messages": [{"role": "user", "content": "a"}]}, {"text_input": LONG}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": LONG}]},
            {"text_input": "", "messages": json.dumps([{"role": "user", "content": LONG}])},
        ),
    ],
)
def test_a_prompt_that_is_much_too_long_does_not_reach_the_front_end(path, body, asked):
    """The front end would tokenize all of it."""
    sentence = "this model's maximum context length is 101 tokens, and the first 1600 characters have more"
    back = behind(lambda request: json_answer(400, {"error": sentence}))
    answer = send(back, "POST", path, json={"model": "m", **body})

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert [request.url.path for request in back.requests] == [GENERATE]
    assert back.body == {"max_tokens": 1, "namespace": "", **asked}


@pytest.mark.parametrize("status", [200, 400, 503, None])
def test_a_long_prompt_that_triton_does_not_find_too_long_reaches_the_front_end(status):
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == GENERATE and status is None:
            raise TimeoutError
        return json_answer(status, {"error": "another"}) if request.url.path == GENERATE else streamed(id="x")

    back = behind(answer)

    assert send(back, "POST", "/v1/completions", json={"model": "m", "prompt": LONG}).status_code == 200
    assert [request.url.path for request in back.requests] == [GENERATE, "/v1/completions"]


def test_a_completion_for_a_model_that_nobody_has_is_not_sent_again():
    back = behind(no_model)
    for answer in (
        send(back, "POST", "/v1/chat/completions", json={"model": "org/other", "messages": []}),
        send(back, "GET", "/v1/models/org/other"),
    ):
        assert answer.status_code == 404
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert error["message"] == "there is no model 'org/other'; GET /v1/models lists the models"
    assert len(back.requests) == 2


def test_a_completion_is_not_sent_again_for_ever_nor_for_another_error(monkeypatch):
    monkeypatch.setattr(front_end, "_PATIENCE_S", 0.0)
    back = behind(no_worker)
    assert send(back, "POST", "/v1/chat/completions", json={"model": "m", "messages": []}).status_code == 503
    assert len(back.requests) == 1
    monkeypatch.setattr(front_end, "_PATIENCE_S", 60.0)
    other = behind(lambda request: json_answer(500, {"message": "a fault", "code": 500}))
    assert send(other, "POST", "/v1/chat/completions", json={"model": "m", "messages": []}).status_code == 500
    assert len(other.requests) == 1


def plain_prompts_only(request: httpx.Request) -> httpx.Response:
    return json_answer(200, {}) if request.url.path == "/v1/completions" else no_worker(request)


@pytest.mark.parametrize("num_choices", [1, 2])
def test_a_conversation_that_the_chat_template_refuses_is_refused_at_once_with_its_sentence(num_choices):
    sentence = "the chat template does not take these messages: roles must alternate"

    def answer(request: httpx.Request) -> httpx.Response:
        return json_answer(400, {"error": sentence}) if request.url.path == GENERATE else plain_prompts_only(request)

    back = behind(answer)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": parts}, {"role": "user", "content": "c"}]
    body = {"model": "m", "messages": messages, "n": num_choices}
    given = send(back, "POST", "/v1/chat/completions", spec_of(api_key("bob")), json=body, headers={"x-api-key": "bob"})

    assert (given.status_code, given.json()["error"]["message"]) == (400, sentence)
    asked = next(json.loads(request.content) for request in back.requests if request.url.path == GENERATE)
    assert (json.loads(asked.pop("messages")), asked.pop("namespace")[:3]) == (
        [{"role": "developer", "content": "a\nb"}, messages[1]],
        "bob",
    )
    assert asked == {"text_input": "", "max_tokens": 1}


def test_a_conversation_that_only_the_front_end_refuses_is_refused_with_the_place_of_the_reason():
    def answer(request: httpx.Request) -> httpx.Response:
        return json_answer(200, {}) if request.url.path == GENERATE else plain_prompts_only(request)

    given = send(behind(answer), "POST", "/v1/chat/completions", json={"model": "m", "messages": MESSAGES})

    assert (given.status_code, given.json()["error"]["type"]) == (400, "invalid_request_error")
    assert given.json()["error"]["message"].endswith(f"its log has the reason under {given.headers['x-request-id']}")


@pytest.mark.parametrize("accepted", [False, True])
def test_the_reason_is_asked_for_again_while_a_busy_server_does_not_answer_in_time(accepted):
    """At its first two requests for one token each, the gateway would time out."""

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        if request.url.path in ("/v1/completions", GENERATE) and asked.count(request.url.path) < 3:
            raise TimeoutError
        if request.url.path == GENERATE and not accepted:
            return json_answer(400, {"error": "roles must alternate"})
        return plain_prompts_only(request)

    asked: list[str] = []
    given = send(behind(answer), "POST", "/v1/chat/completions", json={"model": "m", "messages": MESSAGES})

    sentence = "cannot apply the chat template to these messages" if accepted else "roles must alternate"
    assert (given.status_code, sentence in given.json()["error"]["message"]) == (400, True)
    assert [asked.count(path) for path in ("/v1/completions", GENERATE)] == [3, 3]


@pytest.mark.parametrize(("listed_s", "status"), [(60.0, 200), (0.0, 400)])
def test_a_conversation_is_sent_again_while_a_dead_worker_may_be_listed(listed_s, status):
    """Its attempts go to the dead worker, while that of the plain prompt finds another one."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == GENERATE:
            return json_answer(200, {})
        return plain_prompts_only(request) if len(back.requests) < 20 else streamed(a=1)

    back = behind(answer)
    spec = spec_of()
    spec = spec.model_copy(update={"deployment": spec.deployment.model_copy(update={"listed_s": listed_s})})
    given = send(back, "POST", "/v1/chat/completions", spec, json={"model": "m", "messages": MESSAGES})

    assert given.status_code == status


@pytest.mark.parametrize("num_failed", [2, 5])
def test_a_conversation_waits_for_its_worker(num_failed):

    def answer(request: httpx.Request) -> httpx.Response:
        return no_worker(request) if len(back.requests) <= num_failed else streamed(a=1)

    back = behind(answer)
    assert send(back, "POST", "/v1/chat/completions", json={"model": "m", "messages": MESSAGES}).json()["a"] == 1
    assert [request.url.path for request in back.requests].count("/v1/completions") == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("refusal", "message"),
    [
        ({"status": 503, "message": "busy: 64 requests wait"}, "busy: 64 requests wait"),
        (None, "the server could not answer; send the request again"),
    ],
    ids=["the queue is full", "the queue has room when the reason is asked for"],
)
def test_the_reason_of_a_refusal_that_tools_hide_is_asked_for(stream, refusal, message):
    def answer(request: httpx.Request) -> httpx.Response:
        if json.loads(request.content).get("tool_choice") == "none":
            event = {"choices": [], "nvext": {"engine_data": {"refusal": refusal} if refusal else {}}}
            text = f"data: {json.dumps(event, separators=(',', ':'))}\n\ndata: [DONE]\n\n"
            return httpx.Response(200, headers={"content-type": "text/event-stream"}, text=text)
        fault = {"message": "Internal server error", "code": 500}
        if not stream:
            return json_answer(500, fault)
        text = f"data: {json.dumps({'error': fault}, separators=(',', ':'))}\n\n"
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, text=text)

    body = {"model": "m", "stream": stream, "tools": [{"type": "function", "function": {"name": "f"}}]}
    given = send(behind(answer), "POST", "/v1/chat/completions", json=body)

    assert (given.status_code, given.json()["error"]["message"]) == (503, message)
    assert given.headers["retry-after"] == "2"


@pytest.mark.parametrize("begun", ["", "some text"])
def test_a_fault_of_a_worker_in_a_request_with_tools_runs_it_once(begun):
    def event(reason: str | None, text: str) -> bytes:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": reason}
        return f"data: {json.dumps({'choices': [choice]}, separators=(',', ':'))}\n\n".encode()

    back = behind(lambda request: events(event(None, begun) + event("content_filter", ""), b"data: [DONE]\n\n"))
    body = {"model": "m", "messages": MESSAGES, "tools": [{"type": "function", "function": {"name": "f"}}]}
    given = send(back, "POST", "/v1/chat/completions", json=body)
    streamed = send(back, "POST", "/v1/chat/completions", json=body | {"stream": True})

    assert (given.status_code, given.json()["error"]["type"]) == (500, "server_error")
    assert streamed.text.count('"error"') == 1
    assert begun in streamed.text
    assert "content_filter" not in streamed.text
    assert len(back.requests) == 2


@pytest.mark.parametrize(("triton", "front_end", "expected"), [(200, 200, 200), (400, 200, 400), (200, 404, 503)])
def test_health_needs_no_key_and_counts_triton_and_the_front_end(triton, front_end, expected):
    def act(request: httpx.Request) -> httpx.Response:
        statuses = {"/v2/health/ready": triton, "/v1/models/m": front_end}
        return json_answer(statuses[request.url.path], {})

    assert send(Behind(act, is_ready=None), "GET", "/health", spec_of(api_key("alice"))).status_code == expected


def test_a_bug_of_the_gateway_is_an_error_in_the_format_of_the_api(logs):
    def answer(request: httpx.Request) -> httpx.Response:
        raise KeyError("secret detail")

    given = send(behind(answer), "POST", "/v1/completions", json={"model": "m", "prompt": "x"})

    assert (given.status_code, given.json()["error"]["type"]) == (500, "server_error")
    assert given.headers["x-request-id"] in given.json()["error"]["message"]
    assert "secret detail" not in given.text
    assert "secret detail" in logs.text
