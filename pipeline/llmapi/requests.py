"""Requests of the `llmapi` model: input tensors -> prompt and sampling parameters -> results of TensorRT-LLM's `LLM` ->
output tensors. NOT RUN with it.

Only `LLM.generate_async` is used. It returns an asynchronous iterator of results with a method `abort()`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import RequestError
from pipeline.triton_models.request_loop import IncomingRequest
from pipeline.triton_models.tensors import Array, Tensors, decode_utf8, flag, integer, number, text

# Answers a stop and the requests that it ends, as in the stock model.
STOPPED = RequestError("the request was cancelled")
# Inputs by the name of the sampling parameter that they set.
_NUMBERS = ("temperature", "top_p", "frequency_penalty", "presence_penalty")
_INTEGERS = ("best_of", "top_k", "seed")
_FLAGS = ("exclude_input_from_output", "return_perf_metrics")
_PREFIX = "sampling_param_"


@dataclass(frozen=True, slots=True)
class LlmRequest:
    """A request. sampling: arguments of SamplingParams. Other fields: outputs to return."""

    prompt: str
    sampling: dict[str, Any]
    streaming: bool
    finish_reason: bool
    stop_reason: bool
    cumulative_logprob: bool


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


def llm_request(tensors: Tensors, can_stream: bool) -> LlmRequest:
    """Read a request. can_stream: whether the model may send several responses. Raises RequestError if the request is
    invalid."""
    if flag(tensors, "streaming") and not can_stream:
        raise RequestError(
            "streaming is true, and this model sends one response; leave it out, or write the repository with "
            "--decoupled"
        )
    prompt = text(tensors, "text_input")
    if prompt is None:
        raise RequestError("text_input is missing; it must hold one prompt")
    return LlmRequest(
        prompt=prompt,
        sampling=_sampling(tensors),
        streaming=flag(tensors, "streaming"),
        finish_reason=flag(tensors, "return_finish_reason"),
        stop_reason=flag(tensors, "return_stop_reason"),
        cumulative_logprob=flag(tensors, "return_cumulative_logprob"),
    )


def output_tensors(request: LlmRequest, result: Any) -> dict[str, Array]:
    """Output tensors of a result of the LLM API. In a stream each holds the whole text so far, as in the stock
    model."""
    outputs = result.outputs
    tensors = {"text_output": _texts(output.text for output in outputs)}
    if request.finish_reason:
        tensors["finish_reason"] = _texts(str(output.finish_reason) for output in outputs)
    if request.stop_reason:
        tensors["stop_reason"] = _texts(str(output.stop_reason) for output in outputs)
    if request.cumulative_logprob:
        tensors["cumulative_logprob"] = np.asarray([output.cumulative_logprob for output in outputs], np.float32)
    metrics = getattr(outputs[0], "request_perf_metrics", None)
    return tensors if metrics is None else {**tensors, **_metrics(metrics)}


def _sampling(tensors: Tensors) -> dict[str, Any]:
    """Arguments of SamplingParams: those that the client sent, and the flags, which are false by default, as in the
    stock model."""
    sampling: dict[str, Any] = {name: number(tensors, _PREFIX + name) for name in _NUMBERS}
    sampling |= {name: integer(tensors, _PREFIX + name) for name in _INTEGERS}
    sampling["max_tokens"] = integer(tensors, f"{_PREFIX}max_tokens", 1)
    sampling |= {name: flag(tensors, _PREFIX + name) for name in _FLAGS}
    if (words := tensors.get(_PREFIX + "stop")) is not None:
        sampling["stop"] = [decode_utf8(word, _PREFIX + "stop") for word in words.reshape(-1)]
    return {name: value for name, value in sampling.items() if value is not None}


def _metrics(metrics: Any) -> Mapping[str, Array]:
    cache, times, drafts = metrics.kv_cache_metrics, metrics.timing_metrics, metrics.speculative_decoding
    moments = ("arrival_time", "first_scheduled_time", "first_token_time", "last_token_time")
    return {
        "kv_cache_reused_block": np.asarray([cache.num_reused_blocks], np.int32),
        "kv_cache_missed_block": np.asarray([cache.num_missed_blocks], np.int32),
        "kv_cache_alloc_new_blocks": np.asarray([cache.num_new_allocated_blocks], np.int32),
        "kv_cache_alloc_total_blocks": np.asarray([cache.num_total_allocated_blocks], np.int32),
        "kv_cache_hit_rate": np.asarray([cache.kv_cache_hit_rate], np.float32),
        **{f"{name}_ns": np.asarray([round(1e9 * getattr(times, name).total_seconds())], np.int64) for name in moments},
        "acceptance_rate": np.asarray([drafts.acceptance_rate], np.float32),
        "total_accepted_draft_tokens": np.asarray([drafts.total_accepted_draft_tokens], np.int32),
        "total_draft_tokens": np.asarray([drafts.total_draft_tokens], np.int32),
    }


def _texts(texts: Any) -> Array:
    # Triton accepts text as bytes objects only.
    return np.asarray([text.encode() for text in texts], np.object_)
