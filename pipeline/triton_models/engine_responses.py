"""Responses of the model `tensorrt_llm`, in the format of TensorRT-LLM's backend.

Without streaming one response holds the prompt, unless it is excluded, and the whole output. With streaming each
response holds the new tokens of a step. An end token is neither returned nor counted.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from pipeline.decoding.request import FinishReason
from pipeline.engine.submission import StepEvent, Submission
from pipeline.triton_models.guide_tensors import LogitOutputs
from pipeline.triton_models.request_spans import PassSpans
from pipeline.triton_models.tensors import Array, float_tensor, int_tensor, text_tensor

# The output `finish_reason` of a call that ends after one step and leaves the output unfinished.
STEP = "step"
# Block size of the KV cache figures, TensorRT-LLM's default. The torch engine itself stores whole sequences.
TOKENS_PER_BLOCK = 32


@dataclass(slots=True)
class EngineCall:
    """One row of a request to `tensorrt_llm`. strict: return TensorRT-LLM's outputs only, without ours. row, num_rows:
    index of the row, and rows of the request. sequence: index among the outputs of one prompt. emitted: tokens returned
    so far, without an end token. spans: maker of the spans of the passes, if the trace is sampled."""

    submission: Submission
    streaming: bool
    exclude_input: bool
    return_perf_metrics: bool
    return_num_input_tokens: bool
    return_num_output_tokens: bool
    strict: bool = False
    row: int = 0
    num_rows: int = 1
    sequence: int = 0
    emitted: list[int] = field(default_factory=list)
    spans: PassSpans | None = None
    _arrival_ns: int = field(default_factory=time.monotonic_ns)
    _first_token_ns: int = 0
    _last_token_ns: int = 0
    _logits: LogitOutputs = field(init=False)

    def __post_init__(self) -> None:
        self._logits = LogitOutputs(self.submission.wanted)

    def response(self, event: StepEvent) -> dict[str, Array] | None:
        """Output tensors for the result of a step; None if there is nothing to send yet."""
        # A grammar can end the output with an end token even if the request sets none.
        new = event.token_ids[:-1] if event.finish_reason is FinishReason.END_TOKEN else event.token_ids
        self.emitted += new
        self._logits.take(event.log_probs, event.prompt)
        self._last_token_ns = time.monotonic_ns()
        self._first_token_ns = self._first_token_ns or self._last_token_ns
        if self.streaming:
            if not new and not event.done:
                return None
            output = new
        elif not event.done:
            return None
        else:
            prompt = [] if self.exclude_input else self.submission.request.prompt_ids.tolist()
            output = prompt + self.emitted
        tensors: dict[str, Array] = {
            "output_ids": np.asarray([[output]], np.int32).reshape(1, 1, -1),
            "sequence_length": int_tensor(len(output)),
            **self._logits.tensors(len(new) if self.streaming else len(self.emitted)),
        }
        return tensors | self._asked_tensors(event, len(output)) | self._own_tensors(event)

    def _asked_tensors(self, event: StepEvent, num_tokens: int) -> dict[str, Array]:
        """Outputs on request, with the counts so far. num_tokens: length of this response's output_ids, which
        TensorRT-LLM returns as num_output_tokens, the prompt included if it is there."""
        tensors: dict[str, Array] = {}
        if self.return_num_input_tokens:
            tensors["num_input_tokens"] = int_tensor(len(self.submission.request.prompt_ids))
        if self.return_num_output_tokens:
            tensors["num_output_tokens"] = int_tensor(num_tokens if self.strict else len(self.emitted))
        return tensors | self._perf_metrics(event) if self.return_perf_metrics else tensors

    def _own_tensors(self, event: StepEvent) -> dict[str, Array]:
        """Indices, and our outputs. TensorRT-LLM numbers the rows only of a request with several, and returns no finish
        reason."""
        if self.strict:
            return {"batch_index": int_tensor(self.row)} if self.num_rows > 1 else {}
        tensors = {"batch_index": int_tensor(self.row), "sequence_index": int_tensor(self.sequence)}
        if event.done:
            reason = STEP if event.finish_reason is None else event.finish_reason.value
            tensors["finish_reason"] = text_tensor(reason)
            if self.return_perf_metrics:
                tensors["num_steps"] = int_tensor(event.statistics.num_steps)
        return tensors

    def _perf_metrics(self, event: StepEvent) -> dict[str, Array]:
        """TensorRT-LLM's figures of a request. Times are nanoseconds of this machine's monotonic clock."""
        statistics = event.statistics
        drafted, accepted = statistics.num_draft_tokens, statistics.num_accepted_tokens
        num_blocks = -(-(len(self.submission.request.prompt_ids) + len(self.emitted)) // TOKENS_PER_BLOCK)
        num_reused = statistics.num_reused_tokens // TOKENS_PER_BLOCK
        waited_until = self._first_token_ns - int(statistics.time_to_first_token_s * 1e9)
        return {
            "kv_cache_alloc_new_blocks": int_tensor(num_blocks - num_reused),
            "kv_cache_reused_blocks": int_tensor(num_reused),
            "kv_cache_alloc_total_blocks": int_tensor(num_blocks),
            "arrival_time_ns": _time(self._arrival_ns),
            "first_scheduled_time_ns": _time(max(waited_until, self._arrival_ns)),
            "first_token_time_ns": _time(self._first_token_ns),
            "last_token_time_ns": _time(self._last_token_ns),
            "acceptance_rate": float_tensor(accepted / drafted if drafted else 0.0),
            "total_accepted_draft_tokens": int_tensor(accepted),
            "total_draft_tokens": int_tensor(drafted),
        }


def _time(value: int) -> Array:
    return np.asarray([[value]], np.int64)
