"""Requests that wait or are refused, and slots that are held between the steps of a stream."""

import threading

import pytest

from pipeline.engine.contract import EngineLimits
from pipeline.engine.scheduler import Scheduler
from pipeline.engine.submission import StepEvent, Submission
from pipeline.errors import BusyError, RequestError
from tests.fakes import VOCAB_SIZE, TableEngine, make_request, make_scheduler, plain_decode
from tests.patience import PATIENCE_S


def test_a_full_queue_answers_busy() -> None:
    """A request with a free slot does not count as waiting; three further ones may wait."""
    scheduler = make_scheduler(engine=TableEngine(EngineLimits(2, 256, 128, 64, VOCAB_SIZE)), max_queue_size=3)
    for _ in range(2 + 3):
        scheduler.submit(Submission(make_request()), lambda event: None)
    for _ in range(2):  # before the first pass, and when two run
        with pytest.raises(BusyError, match="3 requests are waiting"):
            scheduler.submit(Submission(make_request()), lambda event: None)
        scheduler.step()


@pytest.mark.parametrize(("max_open", "most"), [(None, 3 + 2), (1, 1)])
def test_a_run_keeps_as_many_requests_open_as_the_queue_or_its_caller_permits(max_open: int | None, most: int) -> None:
    engine = TableEngine(EngineLimits(2, 256, 128, 64, VOCAB_SIZE))
    scheduler, verify, num_open = make_scheduler(engine=engine, max_queue_size=3), engine.verify, set[int]()

    def counted(items: object) -> object:
        num_open.add(len(scheduler._queue.known))
        return verify(items)  # type: ignore[arg-type]

    engine.verify = counted  # type: ignore[method-assign, assignment]
    scheduler.run([Submission(make_request(max_new_tokens=2), "none") for _ in range(8)], max_open)
    assert max(num_open) == most


def stream_steps(scheduler: Scheduler, count: int, output: list[int]) -> None:
    """Steps of one stream as the BLS model makes them: each request continues the one before."""
    for _ in range(count):
        step = Submission(make_request([1, 2, 3, *output], 1), "none", to_be_continued=True)
        scheduler.submit(step, lambda event: output.extend(event.token_ids))
        length = len(output)
        while len(output) == length:
            scheduler.step()


def test_a_stream_of_steps_is_not_refused_for_new_requests_and_waits_for_none_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The only slot belongs to the stream between its steps too, while the queue of new requests is full."""
    monkeypatch.setattr("pipeline.engine.scheduler.time.monotonic", lambda: 0.0)  # no step is late
    scheduler = make_scheduler(engine=TableEngine(EngineLimits(1, 256, 128, 64, VOCAB_SIZE)), max_queue_size=2)
    output: list[int] = []
    new: list[StepEvent] = []
    stream_steps(scheduler, 2, output)
    for _ in range(3):
        scheduler.submit(Submission(make_request(max_new_tokens=100), "none"), new.append)
    stream_steps(scheduler, 18, output)
    assert output == plain_decode(make_request(max_new_tokens=20))
    assert not new


def test_new_requests_run_when_a_stream_of_steps_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("pipeline.engine.scheduler.time.monotonic", lambda: now)
    scheduler = make_scheduler(engine=TableEngine(EngineLimits(1, 256, 128, 64, VOCAB_SIZE)))
    stream_steps(scheduler, 3, [])
    new: list[StepEvent] = []
    scheduler.submit(Submission(make_request(max_new_tokens=2), "none"), new.append)
    scheduler.step()
    assert not new  # the slot is held for the next step, which does not come
    now += 1.0
    scheduler.step()
    assert len(new) == 1


def test_no_place_is_held_for_a_stream_that_has_said_that_it_ends() -> None:
    scheduler = make_scheduler(engine=TableEngine(EngineLimits(1, 256, 128, 64, VOCAB_SIZE)))
    output: list[int] = []
    new: list[StepEvent] = []
    stream_steps(scheduler, 3, output)
    scheduler.submit(Submission(make_request([1, 2, 3, *output], 1), "none"), lambda event: None)
    scheduler.submit(Submission(make_request(), "none"), new.append)
    scheduler.step()
    scheduler.step()
    assert len(new) == 1


def test_no_slot_is_held_for_a_request_whose_output_has_ended() -> None:
    """A request with a limit of steps may end the output before it; then nothing continues it."""
    scheduler = make_scheduler(engine=TableEngine(EngineLimits(1, 256, 128, 64, VOCAB_SIZE)))
    output: list[int] = []
    stream_steps(scheduler, 1, output)
    last = Submission(make_request([1, 2, 3, *output], 2), "none", max_steps=3, to_be_continued=True)
    scheduler.run([last])
    new: list[StepEvent] = []
    scheduler.submit(Submission(make_request(max_new_tokens=2), "none"), new.append)
    scheduler.step()
    assert len(new) == 1


def test_a_hold_ends_by_itself_in_the_schedulers_thread() -> None:
    scheduler = make_scheduler(engine=TableEngine(EngineLimits(1, 256, 128, 64, VOCAB_SIZE)))
    prompt, output = [1, 2, 3], []
    done = threading.Semaphore(0)

    def on_event(event: StepEvent) -> None:
        output.extend(event.token_ids)
        done.release()

    scheduler.start()
    try:
        for _ in range(3):
            scheduler.submit(Submission(make_request(prompt + output, 1), "none", to_be_continued=True), on_event)
            assert done.acquire(timeout=PATIENCE_S)
        scheduler.submit(Submission(make_request([5], 1), "none"), lambda event: done.release())
        assert done.acquire(timeout=PATIENCE_S)
    finally:
        scheduler.close()


def test_an_ended_request_is_continued_once() -> None:
    """Otherwise a client that repeats one prompt would always go first."""
    scheduler = make_scheduler(engine=TableEngine(EngineLimits(1, 256, 128, 64, VOCAB_SIZE)))
    output = [*plain_decode(make_request(max_new_tokens=1))]
    scheduler.run([Submission(make_request(max_new_tokens=1), "none")])
    order: list[str] = []
    first, continuation, again = make_request(), make_request([1, 2, 3, *output]), make_request([1, 2, 3, *output])
    for request in (first, continuation, again):
        scheduler.submit(
            Submission(request, "none"), lambda event: order.append(event.request_id) if event.done else None
        )
    while len(order) < 3:
        scheduler.step()
    assert order == [continuation.request_id, first.request_id, again.request_id]


def test_two_requests_with_one_id_are_refused() -> None:
    scheduler = make_scheduler()
    submission = Submission(make_request())
    scheduler.submit(submission, lambda event: None)
    with pytest.raises(RequestError, match="in use"):
        scheduler.submit(submission, lambda event: None)
