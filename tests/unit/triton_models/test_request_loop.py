"""Concurrent requests in one event loop, with a stand-in for Triton's request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import RequestError
from pipeline.request_ids import unique_id
from pipeline.triton_models.python_backend import CallResponses, ResponseSender
from pipeline.triton_models.request_loop import IncomingRequest, RequestLoop
from pipeline.triton_models.sibling_stops import SiblingStops, siblings_of
from tests.patience import PATIENCE_S
from tests.triton_requests import Request

pytestmark = pytest.mark.usefixtures("triton_backend")


@contextmanager
def running(siblings: SiblingStops | None = None) -> Iterator[RequestLoop]:
    async def serve(incoming: IncomingRequest) -> None:
        kind = str(incoming.tensors["kind"].item())
        if kind == "endless":
            await asyncio.Event().wait()
        if kind == "wrong":
            raise RequestError("kind is wrong")
        if kind == "fault":
            raise ZeroDivisionError("oh")
        incoming.client.answer({"text": np.asarray([kind])}, last=True)

    async def end_all() -> None:
        for task in list(loop._tasks):
            loop._cancel(task)

    loop = RequestLoop(serve, CallResponses(), 2, siblings)
    yield loop
    loop.close(end_all())


@pytest.fixture
def dropped(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """In place of a real search for garbage, which visits what all tests have imported."""
    found: list[bool] = []
    monkeypatch.setattr("pipeline.triton_models.request_loop.drop_requests", lambda: found.append(True))
    return found


@pytest.fixture
def loop(dropped: list[bool]) -> Iterator[RequestLoop]:
    with running() as loop:
        yield loop
    assert dropped


@pytest.fixture
def two_loops(dropped: list[bool], tmp_path: Path) -> Iterator[list[RequestLoop]]:
    """Those of two processes of one model, whose folder has a longer path than a socket may have."""
    folder = tmp_path / ("folder" * 20)
    folder.mkdir()
    config = {"instance_group": [{"count": 2}]}
    with ExitStack() as held:
        yield [held.enter_context(running(siblings_of(name, config, folder))) for name in ("a", "b")]
    assert not list(folder.iterdir())


def answer(request: Request) -> tuple[Any, bool]:
    return request.answers.get(timeout=PATIENCE_S)


def test_each_request_gets_its_own_answer_or_error(loop):
    requests = {kind: Request(kind=kind) for kind in ("endless", "wrong", "fault", "fine")}
    for request in requests.values():
        loop.submit(request)

    assert answer(requests["fine"]) == ({"text": np.asarray(["fine"])}, True)
    assert answer(requests["wrong"]) == (("kind is wrong", "invalid"), True)
    assert answer(requests["fault"]) == (("internal error: ZeroDivisionError('oh')", "internal"), True)
    assert requests["endless"].answers.empty()


def test_a_request_ends_when_its_client_leaves(loop):
    left = Request(gone=True, kind="endless")
    loop.submit(left)

    assert answer(left) == ({}, True)


def test_stop_ends_the_requests_with_its_id_and_no_others(loop):
    unique = unique_id("a")  # of the gateway
    first, second, third, other = (Request(name, kind="endless") for name in ("a", "a", unique, "b"))
    stop = Request("a", stop=True)
    for request in (first, second, third, other, stop):
        loop.submit(request)

    for request in (stop, first, second, third):
        assert answer(request) == ({}, True)
    assert other.answers.empty()


def test_stop_with_a_unique_id_ends_one_request(loop):
    unique = unique_id("a")
    one, others = Request(unique, kind="endless"), [Request(name, kind="endless") for name in ("a", unique_id("a"))]
    stop = Request(unique, stop=True)
    for request in (one, *others, stop):
        loop.submit(request)

    for request in (stop, one):
        assert answer(request) == ({}, True)
    assert all(request.answers.empty() for request in others)


def test_a_stop_that_overtakes_its_request_ends_it_and_no_later_one_with_the_same_chosen_id(loop):
    """A client's request comes over HTTP, and the gateway's stop over gRPC."""
    unique = unique_id("a")
    for stop in (Request(unique, stop=True), Request("a", stop=True)):
        loop.submit(stop)
        answer(stop)
    late, again, same = Request(unique, kind="endless"), Request(unique_id("a"), kind="fine"), Request("a", kind="fine")
    for request in (late, again, same):
        loop.submit(request)

    assert answer(late) == ({}, True)
    assert answer(again) == answer(same) == ({"text": np.asarray(["fine"])}, True)


@pytest.mark.parametrize("request_id", ["a", unique_id("a"), "a" * 100_000], ids=["chosen", "unique", "long"])
def test_a_stop_reaches_the_process_that_runs_the_request(two_loops, request_id):
    first, second = two_loops
    request, other = Request(request_id, kind="endless"), Request("b", kind="endless")
    for each in (request, other):
        first.submit(each)
    stop = Request(request_id, stop=True)
    second.submit(stop)

    assert answer(stop) == answer(request) == ({}, True)
    assert other.answers.empty()


def test_a_stop_that_overtakes_its_request_is_remembered_by_all_processes(two_loops):
    first, second = two_loops
    unique = unique_id("a")
    stop, running_one, last = Request(unique, stop=True), Request("b", kind="endless"), Request("b", stop=True)
    first.submit(running_one)
    second.submit(stop)
    second.submit(last)  # read after the other stop
    assert answer(stop) == answer(running_one) == ({}, True)
    late = Request(unique, kind="endless")
    first.submit(late)

    assert answer(late) == ({}, True)


def test_many_stops_at_once_arrive(two_loops):
    first, second = two_loops
    requests = [Request(unique_id("a"), kind="endless") for _ in range(400)]
    for request in requests:
        first.submit(request)
        second.submit(Request(request.request_id(), stop=True))

    assert all(answer(request) == ({}, True) for request in requests)


def test_one_process_or_a_server_of_another_program_has_no_siblings(tmp_path, capfd):
    assert siblings_of("a", {"instance_group": [{"count": 1}]}, tmp_path) is None
    assert siblings_of("a", {"instance_group": [{"count": 2}]}, None) is None
    assert siblings_of("a" * 200, {"instance_group": [{"count": 2}]}, tmp_path) is None
    assert "stops reach one process only" in capfd.readouterr().err


def test_a_request_that_is_stopped_before_it_began_is_answered(loop):
    async def begin_and_stop(request: IncomingRequest) -> None:
        loop._begin(request)
        (task,) = (task for task, running in loop._tasks.items() if running is request)
        loop._cancel(task)

    request = Request(kind="endless")
    incoming = IncomingRequest({}, ResponseSender(request), "")
    asyncio.run_coroutine_threadsafe(begin_and_stop(incoming), loop._loop).result(PATIENCE_S)

    assert answer(request) == ({}, True)


def test_stop_without_an_id_is_refused(loop):
    stop = Request(stop=True)
    loop.submit(stop)

    (sentence, _), last = answer(stop)
    assert "has no id" in sentence
    assert last
