"""Threads of requests: results in order, and nobody waits for them after an error."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, wait
from contextlib import suppress

import pytest

from pipeline.server.client_threads import ClientThreads
from tests.patience import PATIENCE_S


def test_calls_return_their_results_in_order_and_the_block_waits_for_all() -> None:
    finished: list[int] = []
    with ClientThreads(3) as clients:
        assert list(clients.map(lambda number: number * number, range(10))) == [n * n for n in range(10)]
        for number in range(10):
            clients.submit(finished.append, number)
    assert sorted(finished) == list(range(10))


def test_an_error_of_a_call_is_that_of_its_future() -> None:
    with ClientThreads(1) as clients:
        failed, next_one = clients.submit(int, "no number"), clients.submit(int, "7")
        assert isinstance(failed.exception(), ValueError)
        assert next_one.result() == 7


def test_an_interrupted_block_cancels_what_waits_and_leaves_what_runs() -> None:
    begun, ended = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        ended.wait(PATIENCE_S)

    with suppress(KeyboardInterrupt), ClientThreads(1) as clients:
        running, waiting = clients.submit(hang), clients.submit(hang)
        begun.wait(PATIENCE_S)
        raise KeyboardInterrupt
    assert not running.done()
    assert wait([waiting], PATIENCE_S).done  # also for who waits for its end
    with pytest.raises(CancelledError):
        waiting.result()
    ended.set()


def test_the_threads_end_with_the_block() -> None:
    with ClientThreads(2) as clients:
        pass
    assert not any(thread.is_alive() for thread in clients._threads)
