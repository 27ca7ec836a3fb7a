"""Concurrent requests in one event loop, with a stand-in for Triton's request."""

from __future__ import annotations

import asyncio
import queue
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.errors import RequestError
from pipeline.request_ids import unique_id
from pipeline.triton_models.request_loop import IncomingRequest, RequestLoop
from pipeline.triton_models.triton import CallResponses, Client
from tests.patience import PATIENCE_S

FINAL = 1


class Request:
    """What `execute` gets. answers: responses as (text or error, last)."""

    def __init__(self, request_id: str = "", gone: bool = False, **tensors: Any) -> None:
        self.answers: queue.Queue[tuple[Any, bool]] = queue.Queue()
        self._id, self._gone = request_id, gone
        self._tensors = {name: np.asarray([[value]]) for name, value in tensors.items()}

    def request_id(self) -> str:
        return self._id

    def inputs(self) -> list[Any]:
        return [SimpleNamespace(name=lambda n=n: n, as_numpy=lambda v=v: v) for n, v in self._tensors.items()]

    def requested_output_names(self) -> set[str]:
        return {"text"}

    def get_response_sender(self) -> Any:
        return SimpleNamespace(
            send=lambda response=None, flags=0: self.answers.put((response, flags == FINAL)),
            is_cancelled=lambda: self._gone,
        )


@pytest.fixture(autouse=True)
def backend(monkeypatch: pytest.MonkeyPatch) -> None:
    error = SimpleNamespace(UNAVAILABLE="busy", INVALID_ARG="invalid", INTERNAL="internal")
    utils = SimpleNamespace(
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=FINAL,
        Tensor=lambda name, value: value,
        InferenceResponse=lambda tensors=(), error=None: error or list(tensors),
        TritonError=type("TritonError", (tuple,), {"__new__": lambda cls, *a: tuple(a), **vars(error)}),
        Logger=SimpleNamespace(log_error=lambda text: None),
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Any:
    dropped: list[bool] = []  # a real search for garbage visits what all tests have imported
    monkeypatch.setattr("pipeline.triton_models.request_loop.drop_requests", lambda: dropped.append(True))

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

    loop = RequestLoop(serve, CallResponses(), 2)
    yield loop
    loop.close(end_all())
    assert dropped


def answer(request: Request) -> tuple[Any, bool]:
    return request.answers.get(timeout=PATIENCE_S)


def test_each_request_gets_its_own_answer_or_error(loop):
    requests = {kind: Request(kind=kind) for kind in ("endless", "wrong", "fault", "fine")}
    for request in requests.values():
        loop.submit(request)

    assert answer(requests["fine"]) == ([np.asarray(["fine"])], True)
    assert answer(requests["wrong"]) == (("kind is wrong", "invalid"), True)
    assert answer(requests["fault"]) == (("internal error: ZeroDivisionError('oh')", "internal"), True)
    assert requests["endless"].answers.empty()


def test_a_request_ends_when_its_client_leaves(loop):
    left = Request(gone=True, kind="endless")
    loop.submit(left)

    assert answer(left) == ([], True)


def test_stop_ends_the_requests_with_its_id_and_no_others(loop):
    unique = unique_id("a")  # of the gateway
    first, second, third, other = (Request(name, kind="endless") for name in ("a", "a", unique, "b"))
    stop = Request("a", stop=True)
    for request in (first, second, third, other, stop):
        loop.submit(request)

    for request in (stop, first, second, third):
        assert answer(request) == ([], True)
    assert other.answers.empty()


def test_stop_with_a_unique_id_ends_one_request(loop):
    unique = unique_id("a")
    one, others = Request(unique, kind="endless"), [Request(name, kind="endless") for name in ("a", unique_id("a"))]
    stop = Request(unique, stop=True)
    for request in (one, *others, stop):
        loop.submit(request)

    for request in (stop, one):
        assert answer(request) == ([], True)
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

    assert answer(late) == ([], True)
    assert answer(again) == answer(same) == ([np.asarray(["fine"])], True)


def test_a_request_that_is_stopped_before_it_began_is_answered(loop):
    async def begin_and_stop(request: IncomingRequest) -> None:
        loop._begin(request)
        (task,) = (task for task, running in loop._tasks.items() if running is request)
        loop._cancel(task)

    request = Request(kind="endless")
    incoming = IncomingRequest({}, Client(request), "")
    asyncio.run_coroutine_threadsafe(begin_and_stop(incoming), loop._loop).result(PATIENCE_S)

    assert answer(request) == ([], True)


def test_stop_without_an_id_is_refused(loop):
    stop = Request(stop=True)
    loop.submit(stop)

    (sentence, _), last = answer(stop)
    assert "has no id" in sentence
    assert last
