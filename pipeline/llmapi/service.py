"""Serves one request with an `LLM` of TensorRT-LLM. NOT RUN with it.

Only `LLM.generate_async` is used. It returns an asynchronous iterator of results with a method `abort()`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pipeline.errors import RequestError
from pipeline.llmapi.requests import llm_request, output_tensors
from pipeline.triton_models.request_loop import IncomingRequest


async def serve(llm: Any, sampling_params: Callable[..., Any], can_stream: bool, incoming: IncomingRequest) -> None:
    """Send all responses to a request; to be run by a `RequestLoop`. Ends the model's request if it is cancelled.
    sampling_params: TensorRT-LLM's class SamplingParams. can_stream: whether the Triton model may send several
    responses to a request. Raises RequestError if the request is invalid, or the model ends it early."""
    request = llm_request(incoming.tensors, can_stream)
    running = llm.generate_async(request.prompt, sampling_params(**request.sampling), streaming=request.streaming)
    result = None
    try:
        async for result in running:
            if request.streaming:
                incoming.client.answer(output_tensors(request, result), last=bool(result.finished))
    except asyncio.CancelledError:
        running.abort()
        raise
    if result is None:
        raise RequestError("the model returned no result")
    if not request.streaming:
        incoming.client.answer(output_tensors(request, result), last=True)
    elif not result.finished:
        raise RequestError("the request ended before its output was complete")
