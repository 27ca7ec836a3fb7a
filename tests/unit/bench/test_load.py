"""The load generator keeps its limits and counts every request once."""

from __future__ import annotations

import errno
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import grpc
import numpy as np
import psutil
import pytest

from pipeline.bench import load
from pipeline.bench.contenders.remote import check_address, measured_request, output_ids_of, query_of
from pipeline.bench.data.workload import Prompt
from pipeline.bench.load import MAX_ERROR_KINDS, LoadPlan, LoadResult, percentiles, run_load, summary_of
from pipeline.errors import RequestError, ServerError
from pipeline.server.client import Completion, TextQuery
from pipeline.triton_models.side_channel import without_figures
from tests.http_server import Handler, serving
from tests.patience import PATIENCE_S

PROMPT_IDS = np.asarray([7, 8], np.int32)
QUERIES = [query_of(Prompt((text,)), 4) for text in ("a", "b", "c")]


def answer(**statistics: object) -> Completion:
    counted = {"output_ids": [1, 2, 3], "num_steps": 2, "num_draft_tokens": 4} | statistics
    return Completion("abc", "length", counted, 0.5, (0.1, 0.2, 0.4))


class FakeServer:
    """Answers when all clients have sent a request, so that concurrency can be tested without a clock."""

    def __init__(self, fails: bool = False, num_clients: int = 1) -> None:
        self.asked: list[str] = []
        self.timeouts: list[float] = []
        self._fails = fails
        self._together = threading.Barrier(num_clients)

    def generate(self, query: TextQuery, timeout_s: float) -> Completion:
        self.asked.append(query.text_input)
        self.timeouts.append(timeout_s)
        number = len(self.asked)
        self._together.wait(timeout=PATIENCE_S)
        if self._fails:
            raise RequestError(f"busy {number}")
        return answer()


class Waits(threading.Event):
    """Records the times to wait instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.times.append(timeout or 0.0)
        return self.is_set()


def run(server: FakeServer, plan: LoadPlan) -> LoadResult:
    return run_load(server.generate, QUERIES, plan)


def test_clients_send_the_prompts_in_turn_until_the_limit() -> None:
    result = run(server := FakeServer(num_clients=4), LoadPlan(concurrency=4, duration_s=60, max_requests=12))
    assert sorted(server.asked) == ["a"] * 4 + ["b"] * 4 + ["c"] * 4
    assert result.num_requests == 12
    assert result.output_tokens == 36


def test_nothing_is_sent_after_the_duration() -> None:
    assert run(FakeServer(), LoadPlan(concurrency=2, duration_s=0.0)).num_requests == 0


def test_a_request_that_is_due_after_the_duration_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "Event", Waits)
    run(server := FakeServer(), LoadPlan(concurrency=1, duration_s=60, max_rate=0.01))
    assert server.asked == ["a"]


def test_no_request_may_take_longer_than_duration_and_grace() -> None:
    run(server := FakeServer(), LoadPlan(concurrency=1, duration_s=60, max_requests=3, grace_s=5))
    assert all(60 < timeout <= 65 for timeout in server.timeouts)
    assert server.timeouts == sorted(server.timeouts, reverse=True)


def test_a_bug_in_one_client_ends_the_load_before_its_duration() -> None:
    last = threading.Lock()

    def generate(query: TextQuery, timeout_s: float) -> Completion:
        if query is QUERIES[1] and last.acquire(blocking=False):  # the request of the second client
            raise KeyError("bug")
        time.sleep(0.01)
        return answer()

    started = time.monotonic()
    with pytest.raises(KeyError):
        run_load(generate, QUERIES, LoadPlan(2, duration_s=10 * PATIENCE_S))
    assert time.monotonic() - started < PATIENCE_S


def interrupt_soon() -> None:
    """Ctrl-C while the main thread waits. Python can lose a signal that arrives just before it waits."""
    main = threading.main_thread().ident or 0
    threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT)).start()


@pytest.mark.parametrize("max_rate", [None, 0.01])
def test_ctrl_c_ends_the_load_before_its_duration(max_rate: float | None) -> None:
    interrupted = threading.Lock()

    def interrupt(result: LoadResult) -> None:
        if interrupted.acquire(blocking=False):
            interrupt_soon()

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_load(FakeServer().generate, QUERIES, LoadPlan(2, duration_s=10 * PATIENCE_S, max_rate=max_rate), interrupt)
    assert time.monotonic() - started < PATIENCE_S


def test_one_ctrl_c_ends_the_load_of_a_server_that_never_answers() -> None:
    ended = threading.Event()

    def hang(query: TextQuery, timeout_s: float) -> Completion:
        interrupt_soon()
        ended.wait(timeout_s)
        return answer()

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_load(hang, QUERIES, LoadPlan(1, duration_s=10 * PATIENCE_S))
    assert time.monotonic() - started < PATIENCE_S
    ended.set()


def test_errors_are_counted_by_sentence_and_the_kinds_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    result = run(FakeServer(fails=True, num_clients=1), LoadPlan(concurrency=1, duration_s=60, max_requests=30))
    assert result.num_requests == 0
    assert sum(result.errors.values()) == 30
    assert len(result.errors) == MAX_ERROR_KINDS + 1
    assert summary_of(result)["errors"] == 30


def test_the_rate_bounds_when_a_request_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Waits()
    monkeypatch.setattr(load, "Event", lambda: waits)
    run(FakeServer(), LoadPlan(concurrency=1, duration_s=60, max_requests=3, max_rate=0.5))
    asked_to_wait = [seconds for seconds in waits.times if seconds > 0]
    assert [round(seconds) for seconds in asked_to_wait] == [2, 4]


def test_latencies_come_from_the_arrivals() -> None:
    result = LoadResult(seconds=1.0)
    result.add(answer())
    summary = summary_of(result)
    assert summary["ttft_ms"]["p50"] == 100.0
    assert summary["between_parts_ms"]["max"] == 200.0
    assert summary["inter_token_ms"]["p50"] == 150.0
    assert summary["acceptance_length"] == 1.5
    assert percentiles([]) is None


@pytest.mark.parametrize(("output_ids", "token_s"), [([1], []), ([1, 2], [pytest.approx(0.3)])])
def test_a_time_per_token_takes_two_tokens(output_ids: list[int], token_s: list[object]) -> None:
    result = LoadResult(seconds=1.0)
    result.add(answer(output_ids=output_ids))
    assert result.token_s == token_s


def test_a_generation_takes_counts_from_the_server_and_times_from_the_client() -> None:
    generation = measured_request(
        answer(prompt_ids=[7, 8], num_accepted_tokens=1, acceptance_lengths=[1, 2], draft_seconds=0.01), PROMPT_IDS
    )
    assert generation.output_ids == [1, 2, 3]
    assert (generation.steps, generation.draft_tokens, generation.accepted_tokens) == (2, 4, 1)
    assert (generation.seconds, generation.ttft_s, generation.draft_seconds) == (0.5, 0.1, 0.01)


def test_a_server_that_does_not_count_is_another_version_or_hides_its_counts() -> None:
    with pytest.raises(ServerError, match="lack prompt_ids, output_ids"):
        measured_request(Completion("", None, {"num_draft_tokens": 0}, 0.1), PROMPT_IDS)
    hidden = Completion("", None, without_figures(answer(prompt_ids=[7, 8]).statistics or {}), 0.1)
    with pytest.raises(ServerError, match=r"lack num_steps, num_draft_tokens: server\.side_channel_safe hides them"):
        measured_request(hidden, PROMPT_IDS)
    assert output_ids_of(hidden, PROMPT_IDS) == [1, 2, 3]  # enough for `lookahead verify`


def test_a_server_of_another_model_is_refused() -> None:
    with pytest.raises(ServerError, match="serves another model"):
        measured_request(answer(prompt_ids=[7, 9]), PROMPT_IDS)


def test_the_http_port_is_refused() -> None:
    with serving(Handler) as port, pytest.raises(ServerError, match=f"127.0.0.1:{port} is an HTTP address"):
        check_address(f"127.0.0.1:{port}")


def test_a_grpc_port_of_this_machine_is_fine() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    check_address(f"127.0.0.1:{port}")
    server.stop(None)


def test_a_port_without_a_listener_is_refused_with_a_hint() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # so that no other process listens there
        with pytest.raises(ServerError, match="lookahead status"):
            check_address(f"127.0.0.1:{taken.getsockname()[1]}")


def test_an_address_of_this_machine_is_no_other_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": [SimpleNamespace(address="10.0.0.1")]})
    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(ServerError, match=r"No server listens on 10\.0\.0\.1:8001"):
        check_address("10.0.0.1:8001")


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("10.0.0.1:8001", "--allow-remote"),
        ("8.8.8.8:80", "another machine"),
        ("host", "host:port"),
        ("http://127.0.0.1:8001", "host:port"),
        ("127.0.0.1:99999", "host:port"),
    ],
)
def test_another_machine_is_refused(address: str, what: str) -> None:
    with pytest.raises(ServerError, match=what):
        check_address(address)
