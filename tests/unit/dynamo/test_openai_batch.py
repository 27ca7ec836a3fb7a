"""Runs of batch files: results in order, resumable after a failure and after Ctrl-C."""

from __future__ import annotations

import json
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.dynamo import openai_batch
from pipeline.dynamo.openai_batch import BatchRequest, journal_path, run_batch
from pipeline.errors import ServerError, UserError
from pipeline.server.client_threads import ClientThreads
from tests.http_server import Handler, serving
from tests.patience import PATIENCE_S


class Api:
    """An OpenAI API that echoes. busy: answers 503 so often first. fails_at: cuts that request off, once may_fail is
    set. hangs_at: never answers that request."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.busy = 0
        self.fails_at: int | None = None
        self.hangs_at: int | None = None
        self.ended = threading.Event()
        self.may_fail = threading.Event()
        self.may_fail.set()
        api = self

        class Echo(Handler):
            def do_POST(self) -> None:
                body = json.loads(self.read())
                api.keys.add(self.headers["authorization"])
                if api.hangs_at == body["n"]:
                    api.ended.wait(PATIENCE_S)
                    return
                if api.fails_at == body["n"]:
                    api.may_fail.wait(PATIENCE_S)
                    return
                status = 404 if self.path not in openai_batch._URLS else 400 if body["n"] < 0 else 200
                if api.busy:
                    api.busy -= 1
                    status = 503
                    api.may_fail.set()
                else:
                    api.asked.append(body)
                self.answer(json.dumps({"n": body["n"]}).encode(), status)

        self.handler, self.url = Echo, ""


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api()
    with serving(made.handler) as port:
        made.url = f"http://127.0.0.1:{port}/v1"
        yield made
        made.ended.set()


def requests(*numbers: int) -> list[BatchRequest]:
    return [BatchRequest(f"r{number}", "/v1/chat/completions", {"n": number}) for number in numbers]


def run(asked: list[BatchRequest], out: Path, api: Api, concurrency: int = 4, api_key: str = "k") -> int:
    """Number of failed requests."""
    settings = {"api_key": api_key, "concurrency": concurrency, "timeout_s": PATIENCE_S}
    return len(run_batch(asked, out, api.url, **settings, on_done=lambda custom_id: None))


def results(out: Path) -> list[tuple[str, int, int]]:
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    return [
        (line["custom_id"], line["response"]["status_code"], line["response"]["body"].get("n", 0)) for line in lines
    ]


def test_results_are_in_the_order_of_the_requests(api, tmp_path):
    out = tmp_path / "out.jsonl"

    assert run(requests(*range(20)), out, api, concurrency=8) == 0

    assert results(out) == [(f"r{number}", 200, number) for number in range(20)]
    assert not journal_path(out).exists()
    assert api.keys == {"Bearer k"}


def test_a_run_that_was_cut_off_goes_on(api, tmp_path):
    out = tmp_path / "out.jsonl"
    api.fails_at = 3
    with pytest.raises(ServerError, match="did not answer r3"):
        run(requests(*range(6)), out, api, concurrency=1)
    assert not out.exists()
    assert [body["n"] for body in api.asked] == [0, 1, 2]
    with journal_path(out).open("ab") as journal:
        journal.write(requests(5)[0].digest.encode() + b' {"text": "\xc3')  # a kill in the middle of a letter

    api.fails_at = None
    assert run(requests(*range(6)), out, api) == 0

    assert sorted(body["n"] for body in api.asked) == list(range(6))
    assert results(out) == [(f"r{number}", 200, number) for number in range(6)]


def test_a_run_goes_on_when_the_disk_has_room_again(api, tmp_path):
    out = tmp_path / "out.jsonl"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700, limits[1]))  # a write beyond it fails, as on a full disk
    try:
        with pytest.raises(UserError, match=r"out\.jsonl\.partial cannot be written: .* run the command again"):
            run(requests(*range(6)), out, api, concurrency=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not out.exists()

    assert run(requests(*range(6)), out, api) == 0

    assert results(out) == [(f"r{number}", 200, number) for number in range(6)]


def test_ctrl_c_is_reported_and_lets_the_running_requests_finish(api, tmp_path):
    out, reported = tmp_path / "out.jsonl", []

    def interrupt(custom_id: str) -> None:
        if custom_id == "r0":
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_batch(
            *(requests(*range(6)), out, api.url),
            api_key="k",
            concurrency=1,
            timeout_s=PATIENCE_S,
            on_done=interrupt,
            on_interrupt=lambda: reported.append("once"),
        )
    assert reported == ["once"]

    assert run(requests(*range(6)), out, api) == 0
    assert sorted(body["n"] for body in api.asked) == list(range(6))


def test_one_ctrl_c_ends_a_run_whose_server_never_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(openai_batch, "GRACE_S", 0.1)
    settings = {"api_key": "k", "concurrency": 4, "timeout_s": 10 * PATIENCE_S, "on_done": lambda custom_id: None}
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        interrupt = threading.Timer(0.5, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        interrupt.start()
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            run_batch(requests(*range(6)), tmp_path / "out", f"http://127.0.0.1:{silent.getsockname()[1]}", **settings)
    assert time.monotonic() - started < PATIENCE_S


def test_a_failure_is_reported_although_an_earlier_request_still_runs(api, tmp_path, monkeypatch):
    monkeypatch.setattr(openai_batch, "GRACE_S", 0.1)
    api.hangs_at, api.fails_at = 0, 1
    started = time.monotonic()
    with pytest.raises(ServerError, match="did not answer r1"):
        run(requests(0, 1), tmp_path / "out.jsonl", api)
    assert time.monotonic() - started < PATIENCE_S / 2


def test_without_a_key_none_is_sent(api, tmp_path):
    """A server that needs one would say that it does not know the key."""
    assert run(requests(1), tmp_path / "out.jsonl", api, api_key="") == 0
    assert api.keys == {None}


def test_ctrl_c_ends_a_run_that_is_still_starting(api, tmp_path, monkeypatch):
    submit, reported = ClientThreads.submit, []

    def interrupted(pool, work, request):
        if request.custom_id == "r2":
            raise KeyboardInterrupt
        return submit(pool, work, request)

    monkeypatch.setattr(ClientThreads, "submit", interrupted)
    settings = {"api_key": "k", "concurrency": 1, "timeout_s": PATIENCE_S, "on_done": lambda custom_id: None}
    with pytest.raises(KeyboardInterrupt):
        run_batch(
            requests(*range(6)), tmp_path / "out", api.url, **settings, on_interrupt=lambda: reported.append("once")
        )
    assert reported == ["once"]


def test_a_request_that_was_to_be_sent_again_is_not_done_when_the_run_is_cut_off(api, tmp_path, monkeypatch):
    monkeypatch.setattr(openai_batch, "_FIRST_PAUSE_S", PATIENCE_S)
    out = tmp_path / "out.jsonl"
    api.busy, api.fails_at = 1, 1
    api.may_fail.clear()
    with pytest.raises(ServerError, match="did not answer r1"):
        run(requests(0, 1), out, api)

    api.fails_at = None
    assert run(requests(0, 1), out, api) == 0

    assert results(out) == [("r0", 200, 0), ("r1", 200, 1)]


def test_a_request_that_was_edited_since_is_sent_again(api, tmp_path):
    out = tmp_path / "out.jsonl"
    api.fails_at = 1
    with pytest.raises(ServerError):
        run(requests(0, 1), out, api, concurrency=1)

    edited = [request._replace(body={"n": 7 + number}) for number, request in enumerate(requests(0, 1))]
    assert run(edited, out, api) == 0

    assert results(out) == [("r0", 200, 7), ("r1", 200, 8)]


def test_what_is_no_character_is_left_to_the_server(api, tmp_path):
    asked = [BatchRequest("a\ud800", "/v1/completions", {"n": 1, "prompt": "\ud800"})]

    assert run(asked, tmp_path / "out.jsonl", api) == 0

    assert api.asked == [{"n": 1, "prompt": "\ud800"}]
    assert results(tmp_path / "out.jsonl") == [("a\ud800", 200, 1)]


def test_a_busy_server_is_asked_again_and_a_wrong_request_is_not(api, tmp_path, monkeypatch):
    monkeypatch.setattr(openai_batch, "_FIRST_PAUSE_S", 0.01)
    api.busy = 3

    assert run(requests(-1, 2), tmp_path / "out.jsonl", api) == 1

    assert results(tmp_path / "out.jsonl") == [("r-1", 400, -1), ("r2", 200, 2)]


@pytest.mark.parametrize("content", [b"junk\n", b"junk", b'{"custom_id": "a"}\n', b"\xff" * 70, b"0" * 64 + b" \n"])
def test_a_file_that_is_no_journal_is_refused_and_left_as_it_is(content, api, tmp_path):
    out = tmp_path / "out.jsonl"
    journal_path(out).write_bytes(content)
    with pytest.raises(UserError, match="is not the journal"):
        run(requests(1), out, api)
    assert journal_path(out).read_bytes() == content
    assert not api.asked


def test_two_runs_do_not_write_the_same_output(api, tmp_path):
    out = tmp_path / "out.jsonl"
    with openai_batch._opened_journal(out), pytest.raises(UserError, match="Another `lookahead batch` writes"):
        run(requests(1), out, api)
    assert run(requests(1), out, api) == 0


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_the_url_may_end_as_users_write_it(end, api, tmp_path):
    api.url = api.url.removesuffix("/v1") + end
    assert run(requests(1), tmp_path / "out.jsonl", api) == 0


def test_a_proxy_is_asked_for_other_machines_only(api, tmp_path, monkeypatch):
    monkeypatch.setenv("http_proxy", api.url.removesuffix("/v1"))
    api.url = "http://api.invalid/v1"
    assert run(requests(1), tmp_path / "out.jsonl", api) == 1  # the proxy answers 404 for the whole URL
    assert api.asked == [{"n": 1}]


@pytest.mark.parametrize("url", ["http://[::1", "", "http://a b:1", "http://x:99999", "127.0.0.1:1", "ftp://x"])
def test_what_is_no_url_of_an_api_is_refused(url, api, tmp_path):
    api.url = url
    with pytest.raises(ServerError, match="is not"):
        run(requests(1), tmp_path / "out.jsonl", api)
    assert not journal_path(tmp_path / "out.jsonl").exists()
