"""Threads for requests to a server. Ctrl-C does not wait for them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class ClientThreads(Executor):
    """As ThreadPoolExecutor. But if an exception such as KeyboardInterrupt ends the block, waiting calls are cancelled,
    and running ones end with the process: their server may never answer."""

    def __init__(self, num_threads: int) -> None:
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads = [Thread(target=self._serve, name="client", daemon=True) for _ in range(num_threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        self._tasks.put((future, partial(call, *arguments, **named)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        while cancel_futures:
            try:
                task = self._tasks.get_nowait()
            except Empty:
                break
            if task is not None:
                task[0].cancel()
                task[0].set_running_or_notify_cancel()  # for `wait`
        for _ in self._threads:
            self._tasks.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown(wait=error is None, cancel_futures=error is not None)

    def _serve(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, call = task
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
