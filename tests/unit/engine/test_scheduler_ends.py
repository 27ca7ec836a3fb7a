"""Each request gets a last event, however it ends, and leaves no state."""

import threading
from types import SimpleNamespace

import pytest

from pipeline.decoding.request import FinishReason
from pipeline.decoding.session import Session
from pipeline.decoding.tree import DraftTree, IntArray
from pipeline.engine.contract import EngineLimits
from pipeline.engine.submission import GenerationResult, StepEvent, Submission
from pipeline.errors import BusyError
from tests.fakes import VOCAB_SIZE, HostileSource, TableEngine, make_request, make_scheduler, plain_decode
from tests.logs import Logs
from tests.patience import PATIENCE_S


@pytest.mark.parametrize("how", ["finished", "one step", "cancelled", "failed", "closed"])
def test_the_sources_forget_every_request_however_it_ends(how: str, logs: Logs) -> None:
    source = HostileSource(broken=0.0)
    held: list[str] = []
    source.start = lambda request_id, *rest: held.append(request_id)  # type: ignore[method-assign]
    source.stop = lambda request_id: held.remove(request_id)  # type: ignore[method-assign]
    scheduler = make_scheduler(source=source)
    request, events = make_request(max_new_tokens=50), list[StepEvent]()
    scheduler.submit(Submission(request, "trie", max_steps=1 if how == "one step" else None), events.append)
    if how == "failed":
        scheduler.engine.commit = lambda *arguments: 1 // 0  # type: ignore[method-assign]
    scheduler.step()
    assert held == ([request.request_id] if how in ("finished", "cancelled", "closed") else [])
    if how == "closed":
        scheduler._queue.closed = True
        scheduler.start()
        scheduler.close()
    if how == "cancelled":
        scheduler.cancel(request.request_id)
    while not events[-1].done:
        scheduler.step()
    assert held == []
    assert scheduler.engine.held == []  # type: ignore[attr-defined]
    assert (f"request {request.request_id} failed" in logs.text) == (how == "failed")


def test_cancelling_ends_waiting_and_running_requests_and_frees_their_places() -> None:
    scheduler = make_scheduler(engine=TableEngine(EngineLimits(1, 256, 128, 64, VOCAB_SIZE)))
    events: dict[str, list[StepEvent]] = {}

    def on_event(event: StepEvent) -> None:
        events.setdefault(event.request_id, []).append(event)

    running, waiting, last = (make_request(max_new_tokens=100) for _ in range(3))
    for request in (running, waiting, last):
        scheduler.submit(Submission(request, "none"), on_event)
    scheduler.step()
    scheduler.cancel(waiting.request_id)
    scheduler.cancel(running.request_id)
    scheduler.cancel("never heard of")
    scheduler.step()
    for request in (running, waiting):
        assert events[request.request_id][-1].done
        assert events[request.request_id][-1].finish_reason is FinishReason.CANCELLED
    while not events.get(last.request_id, [StepEvent("", [], None)])[-1].done:  # type: ignore[arg-type]
        scheduler.step()
    assert [token for event in events[last.request_id] for token in event.token_ids] == plain_decode(last)


def test_a_failing_pass_ends_the_requests_in_it_with_the_error_and_the_server_lives(logs: Logs) -> None:
    engine = TableEngine()
    scheduler = make_scheduler(engine=engine)
    verify, failures = engine.verify, iter([True])

    def fails_once(items: object) -> object:
        if next(failures, False):
            raise MemoryError("no memory for this pass")
        return verify(items)  # type: ignore[arg-type]

    engine.verify = fails_once  # type: ignore[method-assign, assignment]
    done: dict[str, StepEvent] = {}
    finished = threading.Event()

    def on_event(event: StepEvent) -> None:
        if event.done:
            done[event.request_id] = event
            finished.set()

    scheduler.start()
    try:
        first, second = make_request(), make_request()
        scheduler.submit(Submission(first), on_event)
        assert finished.wait(PATIENCE_S)
        finished.clear()
        scheduler.submit(Submission(second), on_event)
        assert finished.wait(PATIENCE_S)
    finally:
        scheduler.close()
    assert isinstance(done[first.request_id].error, MemoryError)
    assert "engine step failed" in logs.text
    assert done[second.request_id].finish_reason is FinishReason.LENGTH
    assert engine.held == []


def test_a_request_that_cannot_draft_ends_alone(monkeypatch: pytest.MonkeyPatch, logs: Logs) -> None:
    scheduler, (failing, other) = make_scheduler(), (make_request(), make_request())
    results = {request.request_id: GenerationResult() for request in (failing, other)}
    propose = Session.propose

    def fails(session: Session, *arguments: float) -> DraftTree:
        if session.request is failing:
            raise MemoryError
        return propose(session, *arguments)

    monkeypatch.setattr(Session, "propose", fails)
    for request in (failing, other):
        scheduler.submit(Submission(request, "trie"), results[request.request_id].take)
    while scheduler._queue.known:
        scheduler.step()
    assert isinstance(results[failing.request_id].error, MemoryError)
    assert results[other.request_id].output_ids == plain_decode(other)
    assert scheduler.engine.held == []  # type: ignore[attr-defined]
    assert f"request {failing.request_id} failed" in logs.text


def test_a_request_that_cannot_start_gets_the_error_and_its_id_is_free_again(logs: Logs) -> None:
    scheduler = make_scheduler()
    engine, request = scheduler.engine, make_request(max_new_tokens=2)
    open_sequence, failures = engine.open, iter([True])

    def fails_once(token_ids: IntArray, reuse: bool = True) -> object:
        if next(failures, False):
            raise MemoryError("no memory for this request")
        return open_sequence(token_ids)

    engine.open = fails_once  # type: ignore[method-assign, assignment]
    events: list[StepEvent] = []
    scheduler.submit(Submission(request), events.append)
    scheduler.step()
    assert [type(event.error) for event in events if event.done] == [MemoryError]
    assert f"request {request.request_id} could not begin" in logs.text
    (result,) = scheduler.run([Submission(request)])
    assert result.output_ids == plain_decode(request)


def test_a_draft_source_that_fails_at_the_start_leaves_the_place_free(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = make_scheduler()

    def fails(request_id: str) -> int:
        raise ValueError("what a source may raise")

    monkeypatch.setattr(scheduler.drafter, "needs_top_k", fails)
    events: list[StepEvent] = []
    scheduler.submit(Submission(make_request()), events.append)
    scheduler.step()
    assert isinstance(events[-1].error, ValueError)
    assert scheduler.engine.held == []  # type: ignore[attr-defined]


def test_a_cancellation_that_comes_too_late_does_not_meet_the_next_request_of_that_id() -> None:
    scheduler = make_scheduler()
    engine, request = scheduler.engine, make_request(max_new_tokens=1)
    verify = engine.verify

    def cancelled_meanwhile(items: object) -> object:
        scheduler.cancel(request.request_id)
        return verify(items)  # type: ignore[arg-type]

    engine.verify = cancelled_meanwhile  # type: ignore[method-assign, assignment]
    (first,) = scheduler.run([Submission(request)])
    engine.verify = verify  # type: ignore[method-assign]
    (second,) = scheduler.run([Submission(request)])
    assert first.finish_reason is second.finish_reason is FinishReason.LENGTH


def test_closing_notifies_unfinished_requests() -> None:
    scheduler = make_scheduler()
    ended = threading.Event()
    scheduler.start()
    scheduler.submit(Submission(make_request(max_new_tokens=200)), lambda event: ended.set() if event.done else None)
    scheduler.close()
    assert ended.wait(PATIENCE_S)
    with pytest.raises(BusyError, match="shutting down"):
        scheduler.submit(Submission(make_request()), lambda event: None)


def test_closing_ends_the_thread_and_the_compiler_of_grammars() -> None:
    scheduler = make_scheduler()
    calls: list[str] = []
    compiler = SimpleNamespace(preload=lambda: calls.append("preload"), close=lambda: calls.append("close"))
    scheduler._compiler = compiler  # type: ignore[assignment]
    scheduler.start()
    thread = scheduler._thread
    assert thread is not None
    assert thread.daemon, "a process that does not close it ends all the same"
    scheduler.close()
    assert not thread.is_alive()
    assert scheduler._thread is None
    assert calls == ["preload", "close"]
