"""The load generator keeps its bounds and counts every request once."""

from __future__ import annotations

import asyncio

import pytest

from pipeline.bench.load import MAX_ERROR_KINDS, LoadPlan, LoadResult, drive, percentiles, summary_of
from pipeline.bench.remote import Answer, Ask, generation_of_answer, require_loopback
from pipeline.bench.workload import Prompt
from pipeline.errors import RequestError, ServerError

ASKS = [Ask(Prompt((text,)), 4) for text in ("a", "b", "c")]


def answer(**statistics: object) -> Answer:
    counted = {"output_ids": [1, 2, 3], "num_steps": 2, "num_draft_tokens": 4} | statistics
    return Answer("abc", (0.1, 0.2, 0.4), 0.5, "length", counted)


class FakeServer:
    def __init__(self, fails: bool = False) -> None:
        self.asked: list[str] = []
        self.most = self._open = 0
        self._fails = fails

    async def generate(self, ask: Ask) -> Answer:
        self.asked.append(ask.prompt.messages[0])
        number = len(self.asked)
        self._open += 1
        self.most = max(self.most, self._open)
        await asyncio.sleep(0)
        self._open -= 1
        if self._fails:
            raise RequestError(f"busy {number}")
        return answer()


def run(server: FakeServer, plan: LoadPlan) -> LoadResult:
    return asyncio.run(drive(server.generate, ASKS, plan, lambda result: None))


def test_so_many_clients_send_the_prompts_in_turn_until_the_bound() -> None:
    server = FakeServer()
    result = run(server, LoadPlan(concurrency=4, duration_s=60, max_requests=10))
    assert server.asked == ["a", "b", "c"] * 3 + ["a"]
    assert server.most == 4
    assert result.num_requests == 10
    assert result.output_tokens == 30


def test_nothing_is_sent_after_the_duration() -> None:
    assert run(FakeServer(), LoadPlan(concurrency=2, duration_s=0.0)).num_requests == 0


def test_what_does_not_end_in_the_grace_time_is_cancelled_and_counted() -> None:
    cancelled: list[str] = []

    async def hang(ask: Ask) -> Answer:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(ask.prompt.messages[0])
            raise
        return answer()

    result = asyncio.run(drive(hang, ASKS, LoadPlan(2, duration_s=0.01, grace_s=0.01), lambda result: None))
    assert sorted(cancelled) == ["a", "b"]
    assert (result.num_requests, result.num_cancelled) == (0, 2)


def test_a_bug_in_a_client_is_not_swallowed() -> None:
    async def broken(ask: Ask) -> Answer:
        raise KeyError("bug")

    with pytest.raises(KeyError):
        asyncio.run(drive(broken, ASKS, LoadPlan(1, duration_s=1), lambda result: None))


def test_errors_are_counted_by_sentence_and_the_kinds_are_bounded() -> None:
    result = run(FakeServer(fails=True), LoadPlan(concurrency=30, duration_s=60, max_requests=30))
    assert result.num_requests == 0
    assert sum(result.errors.values()) == 30
    assert len(result.errors) == MAX_ERROR_KINDS + 1
    assert summary_of(result)["errors"] == 30


def test_the_rate_bounds_when_a_request_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    real_sleep = asyncio.sleep

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await real_sleep(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    run(FakeServer(), LoadPlan(concurrency=1, duration_s=60, max_requests=3, max_rate=0.5))
    asked_to_wait = [seconds for seconds in waits if seconds > 0]
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


def test_a_generation_takes_counts_from_the_server_and_times_from_the_client() -> None:
    generation = generation_of_answer(answer(num_accepted_tokens=1, acceptance_lengths=[1, 2], draft_seconds=0.01))
    assert generation.output_ids == [1, 2, 3]
    assert (generation.steps, generation.draft_tokens, generation.accepted_tokens) == (2, 4, 1)
    assert (generation.seconds, generation.ttft_s, generation.draft_seconds) == (0.5, 0.1, 0.01)


def test_a_server_that_does_not_count_is_another_version() -> None:
    with pytest.raises(ServerError, match="output_ids, num_steps"):
        generation_of_answer(Answer("", (), 0.1, None, {"num_draft_tokens": 0}))


@pytest.mark.parametrize("address", ["127.0.0.1:8001", "127.9.9.9:1", "[::1]:8001"])
def test_this_machine_is_loopback(address: str) -> None:
    require_loopback(address)


@pytest.mark.parametrize(
    ("address", "what"), [("10.0.0.1:8001", "--allow-remote"), ("8.8.8.8:80", "another machine"), ("host", "host:port")]
)
def test_another_machine_is_refused(address: str, what: str) -> None:
    with pytest.raises(ServerError, match=what):
        require_loopback(address)
