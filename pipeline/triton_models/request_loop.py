"""Runs the requests of one Triton model concurrently in one event loop.

`execute` must return before Triton passes the next request, so a separate thread runs the loop. A request ends early if
its client disconnects, or if a request with the same id and the input `stop` arrives.
"""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pipeline.errors import RequestError, UserError
from pipeline.request_ids import chosen_id, is_unique
from pipeline.triton_models.python_backend import (
    CallResponses,
    ResponseSender,
    drop_requests,
    error_response,
    tensors_of,
)
from pipeline.triton_models.sibling_stops import SiblingStops
from pipeline.triton_models.tensors import Tensors, flag

# Number of remembered stops of requests that have not arrived: a stop over gRPC may overtake its request over HTTP.
_MAX_EARLY_STOPS = 1024


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """A request in service. request_id: set by the client, so not unique."""

    tensors: Tensors
    client: ResponseSender
    request_id: str


Serve = Callable[[IncomingRequest], Coroutine[Any, Any, None]]


class RequestLoop:
    """Runs `serve` once per request. serve sends all responses, the final one included. If it raises, RequestLoop sends
    the error. kept: responses of calls to other models, see `CallResponses`. max_calls: threads of the loop's default
    executor, one for each concurrent call to another model. siblings: other processes of the model, if there are any.
    check_period_s: interval of checks for disconnected clients. stopped: error that answers a stop and the requests
    that it ends; None for a response without outputs."""

    def __init__(
        self,
        serve: Serve,
        kept: CallResponses,
        max_calls: int,
        siblings: SiblingStops | None = None,
        check_period_s: float = 0.1,
        stopped: RequestError | None = None,
    ) -> None:
        self._serve = serve
        self._kept = kept
        self._check_period_s = check_period_s
        self._stopped = stopped
        self._tasks: dict[asyncio.Task[None], IncomingRequest] = {}
        self._watch: asyncio.Task[None] | None = None
        self._early_stops: deque[str] = deque(maxlen=_MAX_EARLY_STOPS)
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(max_calls, "calls"))
        self._siblings = siblings
        if siblings is not None:
            siblings.start(self._loop, self._stop_running)
        self._thread = threading.Thread(target=self._loop.run_forever, name="requests", daemon=True)
        self._thread.start()

    def submit(self, request: Any) -> None:
        """Start to serve a request passed to `execute`. Copies its tensors, because Triton reuses their memory when
        `execute` returns."""
        tensors = {name: value.copy() for name, value in tensors_of(request).items()}
        self._loop.call_soon_threadsafe(
            self._begin, IncomingRequest(tensors, ResponseSender(request), request.request_id())
        )

    def close(self, *endings: Coroutine[Any, Any, None]) -> None:
        """Run `endings` in the loop, then stop it. No request may be running: Triton calls `finalize` after the last
        response."""
        for ending in (*endings, self._end_watch()):
            asyncio.run_coroutine_threadsafe(ending, self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        if self._siblings is not None:
            self._siblings.close()
        drop_requests()

    def _begin(self, incoming: IncomingRequest) -> None:
        task = self._loop.create_task(self._run(incoming))
        self._tasks[task] = incoming
        task.add_done_callback(lambda ended: self._ended(ended, incoming))
        if self._watch is None or self._watch.done():
            self._watch = self._loop.create_task(self._watch_clients())

    def _ended(self, task: asyncio.Task[None], incoming: IncomingRequest) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():  # before `_run` began
            self._answer_stopped(incoming.client)

    async def _run(self, incoming: IncomingRequest) -> None:
        import triton_python_backend_utils as pb_utils

        client = incoming.client
        try:
            if flag(incoming.tensors, "stop"):
                self._stop(incoming)
                self._answer_stopped(client)
            elif incoming.request_id in self._early_stops:
                self._answer_stopped(client)
            else:
                await self._serve(incoming)
        except UserError as error:
            client.send(error_response(error), last=True)
        except asyncio.CancelledError:
            self._answer_stopped(client)
        except Exception as error:  # a bug ends this request, not the server
            pb_utils.Logger.log_error(f"a request failed: {traceback.format_exc()}")
            client.send(error_response(error), last=True)

    def _answer_stopped(self, client: ResponseSender) -> None:
        if self._stopped is None:
            client.answer({}, last=True)
        else:
            client.send(error_response(self._stopped), last=True)

    def _stop(self, asked: IncomingRequest) -> None:
        if not asked.request_id:
            raise RequestError("stop is true and the request has no id; send it with the id of the request to stop")
        is_stopped = self._stop_running(asked.request_id, asked)
        if self._siblings is not None and not (is_stopped and is_unique(asked.request_id)):
            self._siblings.send(asked.request_id)

    def _stop_running(self, request_id: str, asked: IncomingRequest | None = None) -> bool:
        """Stop the requests of this process that have the id, except `asked`, which asks for it. Returns whether there
        was one. If not, a unique id is remembered, because its request may come later."""
        stopped = [
            task
            for task, running in self._tasks.items()
            if running is not asked and request_id in (running.request_id, chosen_id(running.request_id))
        ]
        for task in stopped:
            self._cancel(task)
        if not stopped and is_unique(request_id):
            self._early_stops.append(request_id)
        return bool(stopped)

    async def _watch_clients(self) -> None:
        """Cancel the requests of disconnected clients until no request is left."""
        while self._tasks:
            await asyncio.sleep(self._check_period_s)
            for task, incoming in list(self._tasks.items()):
                if not task.done() and self._kept.is_gone(incoming.client):
                    self._cancel(task)

    async def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])

    def _cancel(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        task.cancel()
