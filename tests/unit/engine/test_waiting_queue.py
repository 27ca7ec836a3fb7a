"""The waiting queue against plain lists: order, refusals and held slots, for any order of operations."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.engine import waiting_queue as module
from pipeline.engine.submission import Submission
from pipeline.engine.waiting_queue import HOLD_S, WaitingQueue, WaitingRequest
from pipeline.errors import BusyError
from tests.fakes import make_request

PLACES, QUEUE = 3, 2
KINDS = {"add": 8, "take": 6, "end": 4, "cancel": 1, "drop": 1, "wait": 2}


def ids(text: int) -> np.ndarray:
    return np.asarray([text, 7], np.int32)


def add(queue: WaitingQueue, text: int) -> str:
    request = make_request(ids(text).tolist())
    queue.add(Submission(request), lambda event: None)
    return request.request_id


@settings(max_examples=60)
@given(st.randoms(use_true_random=True))
def test_it_does_what_plain_lists_say(random: Random) -> None:
    """Long runs from a random generator, because short ones hold no slot and fill no queue."""
    queue = WaitingQueue(QUEUE, PLACES)
    new: list[str] = []
    continuing: list[str] = []
    running: list[str] = []
    cancelled: set[str] = set()
    may_be_continued: Counter[int] = Counter()
    held: list[tuple[int, float]] = []
    now = 0.0
    for what in random.choices([*KINDS], [*KINDS.values()], k=200):
        number, flag = random.randrange(4), random.random() < 0.5
        if what == "add":
            goes_on = may_be_continued[number] > 0
            if len(continuing if goes_on else new + continuing + running) >= QUEUE + PLACES:
                with pytest.raises(BusyError, match=f"{QUEUE} requests are waiting"):
                    add(queue, number)
                continue
            (continuing if goes_on else new).append(add(queue, number))
            if goes_on:
                may_be_continued[number] -= 1
                own = next((hold for hold in held if hold[0] == number), None)
                held = [hold for hold in held if hold is not own]
        elif what == "take":
            held = [hold for hold in held if hold[1] > now]
            first = continuing or (new if number > len(held) else [])
            assert queue.can_take(number, now) == bool(first and number)
            entry = queue.take(number, now)
            assert (entry and entry.request_id) == (first[0] if first and number else None)
            if entry is not None:
                assert entry.continues is (first is continuing)
                running.append(first.pop(0))
        elif what == "end":
            for ended in running[:1]:
                queue.forget(ended)
                cancelled.discard(ended)
            del running[:1]
            queue.remember(ids(number), flag, now)
            may_be_continued[number] = min(may_be_continued[number] + 1, PLACES)
            held += [(number, now + HOLD_S)] * flag
        elif what == "cancel" and number < len(known := new + continuing + running):
            queue.cancelled.add(known[number])
            cancelled.add(known[number])
        elif what == "drop":
            dropped = [name for name in continuing + new if name in cancelled]
            assert queue.take_cancelled()[0] == cancelled
            new = [name for name in new if name not in dropped]
            continuing = [name for name in continuing if name not in dropped]
            cancelled = set()
        elif what == "wait":
            now += number * HOLD_S / 2
        assert queue.known == {*new, *continuing, *running}
        assert [[entry.request_id for entry in queue] for queue in (queue.continuing, queue.waiting)] == [
            continuing,
            new,
        ]


def test_who_waited_and_is_cancelled_is_handed_back_once() -> None:
    queue = WaitingQueue(QUEUE, PLACES)
    first, second = add(queue, 0), add(queue, 1)
    queue.cancelled |= {first}
    assert [entry.request_id for entry in queue.take_cancelled()[1]] == [first]
    assert queue.take_cancelled() == (set(), [])
    assert _id(queue.take(PLACES, 0.0)) == second


def test_what_ended_long_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NUM_REMEMBERED", 2)
    queue = WaitingQueue(QUEUE, PLACES)
    for text in (0, 1, 0, 2):  # 1 is the oldest
        queue.remember(ids(text), hold=False, now=0.0)
    new = add(queue, 1)
    continuing = [add(queue, 0), add(queue, 2)]
    assert [_id(queue.take(PLACES, 0.0)) for _ in range(3)] == [*continuing, new]


def _id(entry: WaitingRequest | None) -> str:
    assert entry is not None
    return entry.request_id
