"""Serves concurrent requests with an `LLM` of TensorRT-LLM in a separate event loop. NOT RUN with it.

Only `LLM.generate_async` and `shutdown` are used. The former returns an asynchronous iterator of results with a method
`abort()`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

from pipeline.errors import RequestError
from pipeline.llmapi.requests import LlmRequest, llm_request, output_tensors
from pipeline.triton_models.tensors import Array, Tensors

logger = logging.getLogger(__name__)


class ServiceClient(Protocol):
    """Receives the responses to one request. request_id: set by the client, or ""."""

    request_id: str

    def answer(self, tensors: dict[str, Array], *, last: bool) -> None: ...
    def fail(self, error: Exception) -> None: ...
    def is_gone(self) -> bool: ...


class LlmService:
    """Serves the requests of one `LLM`. sampling_params: TensorRT-LLM's class SamplingParams. check_period_s: interval
    of checks for disconnected clients. can_stream: whether the Triton model may send several responses to a request."""

    def __init__(self, llm: Any, sampling_params: Callable[..., Any], check_period_s: float, can_stream: bool) -> None:
        self._llm = llm
        self._sampling_params = sampling_params
        self._check_period_s = check_period_s
        self._can_stream = can_stream
        self._by_id: dict[str, Any] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="llm-requests", daemon=True)
        self._thread.start()

    def submit(self, tensors: Tensors, client: ServiceClient) -> None:
        """Serve a request; returns at once."""
        asyncio.run_coroutine_threadsafe(self._serve(tensors, client), self._loop)

    def close(self) -> None:
        """Stop the loop and the model. Running requests get no further response."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._llm.shutdown()

    async def _serve(self, tensors: Tensors, client: ServiceClient) -> None:
        try:
            request = llm_request(tensors, self._can_stream)
            if request.is_stop:
                self._stop(client)
            else:
                await self._generate(request, client)
        except RequestError as error:
            client.fail(error)
        except Exception as error:  # this request fails, the others continue
            logger.exception("a request failed")
            client.fail(error)

    async def _generate(self, request: LlmRequest, client: ServiceClient) -> None:
        running = self._llm.generate_async(
            request.prompt, self._sampling_params(**request.sampling), streaming=request.streaming
        )
        if client.request_id:
            self._by_id[client.request_id] = running
        watch = asyncio.ensure_future(self._abort_when_gone(running, client))
        result = None
        try:
            async for result in running:
                if request.streaming:
                    client.answer(output_tensors(request, result), last=bool(result.finished))
            if result is None:
                raise RequestError("the model returned no result")
            if not request.streaming:
                client.answer(output_tensors(request, result), last=True)
            elif not result.finished:
                raise RequestError("the request ended before its output was complete")
        finally:
            watch.cancel()
            if self._by_id.get(client.request_id) is running:
                del self._by_id[client.request_id]

    def _stop(self, client: ServiceClient) -> None:
        if not client.request_id:
            raise RequestError("stop needs the id of the request to stop")
        running = self._by_id.get(client.request_id)
        if running is not None:
            running.abort()
        client.fail(RequestError("the request was cancelled"))

    async def _abort_when_gone(self, running: Any, client: ServiceClient) -> None:
        while not client.is_gone():
            await asyncio.sleep(self._check_period_s)
        running.abort()
