"""One request over several Triton servers continues after one of them stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest

from pipeline.dynamo import servers
from pipeline.dynamo.request_tensors import TokenRequest, token_request
from pipeline.dynamo.servers import TritonServers
from pipeline.dynamo.triton_stream import TokenChunk
from pipeline.errors import BusyError, EngineError, RequestError
from tests.unit.dynamo.requests import SPEC, request


class Server:
    """Answers token n with n + 1 of the number of tokens, some at a time, and fails on demand."""

    def __init__(self, *failures: tuple[int, Exception], is_there: bool = True) -> None:
        """failures: for one call after the other, tokens that it gives before and what it then raises."""
        self.failures = list(failures)
        self.is_there = is_there
        self.is_lost = False
        self.asked: list[Mapping[str, Any]] = []

    @property
    def cannot_be_reached(self) -> bool:
        return self.is_lost

    async def is_ready(self) -> bool:
        return self.is_there

    async def generate(
        self, tensors: Mapping[str, Any], request_id: str, trace: Mapping[str, str]
    ) -> AsyncGenerator[TokenChunk, None]:
        self.asked.append(tensors)
        ids = tensors["input_ids"][0].tolist()
        num_resumed = int(tensors.get("num_resumed_tokens", [[0]])[0][0])
        most = int(tensors["max_tokens"][0][0]) - num_resumed
        limit, failure = self.failures.pop(0) if self.failures else (most, None)
        for number in range(min(limit, most)):
            last = failure is None and number == most - 1
            yield TokenChunk([len(ids) + number], "length" if last else None)
        if failure is not None:
            raise failure


def ask(own: Server, *others: Server, has_other_machines: bool = True) -> list[TokenChunk]:
    async def work() -> list[TokenChunk]:
        wanted: TokenRequest = token_request(request(None, {}), "id", SPEC)
        found = TritonServers(own, others, has_other_machines)  # type: ignore[arg-type]
        return [chunk async for chunk in found.generate(wanted, "id", {})]

    return asyncio.run(work())


def tokens(chunks: list[TokenChunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


WHOLE = list(range(3, 13))
GONE = EngineError("gone")


def test_while_its_own_server_is_there_no_other_is_asked():
    own, other = Server(), Server()

    assert tokens(ask(own, other)) == WHOLE
    assert not other.asked


def test_a_server_that_is_known_to_be_gone_is_not_asked_first():
    own, other = Server(is_there=False), Server()
    own.is_lost = True

    assert tokens(ask(own, other)) == WHOLE
    assert (own.asked, len(other.asked)) == ([], 1)
    own.is_there = True  # again
    assert tokens(ask(own, other)) == WHOLE
    assert len(own.asked) == 1


@pytest.mark.parametrize("num_before", [0, 1, 9])
def test_an_output_goes_on_elsewhere_as_it_would_have(num_before):
    own, other = Server((num_before, GONE), is_there=False), Server()

    chunks = ask(own, other)

    assert tokens(chunks) == WHOLE
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["length"]
    (moved,) = other.asked
    assert moved["input_ids"].tolist() == [[5, 6, 7, *WHOLE[:num_before]]]
    assert moved["max_tokens"].tolist() == [[10]]  # of the whole output
    assert ("num_resumed_tokens" in moved) == (num_before > 0)


def test_it_moves_as_often_as_servers_die_and_comes_back():
    own, other = Server((2, GONE), (3, GONE)), Server((0, GONE), is_there=False)

    assert tokens(ask(own, other)) == WHOLE
    assert len(own.asked) == 3


def test_an_output_whose_last_token_was_sent_before_the_end_is_ended():
    own, other = Server((10, GONE), is_there=False), Server()

    chunks = ask(own, other)

    assert tokens(chunks) == WHOLE
    assert chunks[-1] == TokenChunk([], "length")
    assert not other.asked


def test_with_no_server_left_workers_of_other_machines_are_asked(monkeypatch):
    monkeypatch.setattr(servers, "_SEARCH_S", 0.05)

    with pytest.raises(EngineError, match="Triton is not ready on this machine"):
        ask(Server((2, GONE), is_there=False), Server(is_there=False))


class Restarting(Server):
    """Is ready again at the tenth question."""

    num_asked = 0

    async def is_ready(self) -> bool:
        self.num_asked += 1
        return self.num_asked == 10


def test_on_the_only_machine_an_output_waits_for_a_server_that_is_started_again(monkeypatch):
    monkeypatch.setattr(servers, "_SEARCH_S", 0)

    assert tokens(ask(Restarting((2, GONE)), Server(is_there=False), has_other_machines=False)) == WHOLE


def test_on_the_only_machine_a_request_is_refused_as_busy_if_no_server_comes_back(monkeypatch):
    monkeypatch.setattr(servers, "_RETURN_S", 0.05)

    with pytest.raises(BusyError, match="Triton is not ready"):
        ask(Server((2, GONE), is_there=False), has_other_machines=False)


def test_a_busy_server_refuses_what_is_new_and_keeps_what_has_begun_waiting():
    with pytest.raises(BusyError):
        ask(Server((0, BusyError("busy"))))

    moved = Server((0, BusyError("busy")), (0, BusyError("busy")))
    assert tokens(ask(Server((4, GONE), is_there=False), moved)) == WHOLE
    assert len(moved.asked) == 3


def test_the_time_limit_for_busy_servers_begins_again_with_each_of_them(monkeypatch):
    monkeypatch.setattr(servers, "_POLL_S", 0.02)
    monkeypatch.setattr(servers, "_BUSY_S", 0.03)  # longer than a pause, shorter than two
    busy = BusyError("busy")

    assert tokens(ask(Server((4, GONE), (0, busy), (2, GONE), (0, busy)))) == WHOLE


def test_a_fault_of_a_server_that_ends_changes_nothing_and_a_second_one_is_raised():
    fault = RuntimeError("internal error: the loop is closed")
    own, other = Server((2, fault), is_there=False), Server()

    assert tokens(ask(own, other)) == WHOLE
    with pytest.raises(RuntimeError, match="loop is closed"):
        ask(Server((2, fault), (0, GONE), (1, fault)))


def test_a_wrong_request_is_not_asked_twice():
    other = Server()

    with pytest.raises(RequestError):
        ask(Server((0, RequestError("no"))), other)
    assert not other.asked
