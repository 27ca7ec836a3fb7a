"""A stand-in for TensorRT-LLM's LLM API, shaped as the contract says: the model is an arithmetic rule over bytes, and
drafts are asked for, checked and verified as a drafter may expect. It shares no code with the real one."""

from __future__ import annotations

import asyncio
import itertools
import pickle
from dataclasses import dataclass, field
from typing import Any

VOCABULARY = 256
# Of the arguments of LLM() and of its KvCacheConfig, those that model.yaml may have. The real ones refuse all others.
ARGUMENTS = {
    *("backend", "dtype", "revision", "trust_remote_code", "max_batch_size", "max_num_tokens", "max_seq_len"),
    *("tensor_parallel_size", "pipeline_parallel_size", "moe_tensor_parallel_size", "moe_expert_parallel_size"),
    *("enable_chunked_prefill", "disable_overlap_scheduler", "kv_cache_config"),
}
CACHE_ARGUMENTS = {"enable_block_reuse", "free_gpu_memory_fraction", "host_cache_size", "dtype", "tokens_per_block"}


@dataclass
class SamplingParams:
    max_tokens: int = 32
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    best_of: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    stop: list[str] = field(default_factory=list)
    exclude_input_from_output: bool = True
    return_perf_metrics: bool = False


class Request:
    """As a drafter sees it."""

    def __init__(self, request_id: int, prompt: list[int], max_new_tokens: int) -> None:
        self.request_id = request_id
        self.py_batch_idx = request_id
        self.py_orig_prompt_len = len(prompt)
        self.py_max_new_tokens = max_new_tokens
        self.py_draft_tokens: list[int] = []
        self.tokens = list(prompt)

    def get_tokens(self, beam: int) -> list[int]:
        assert beam == 0
        return list(self.tokens)

    @property
    def num_left(self) -> int:
        return self.py_orig_prompt_len + self.py_max_new_tokens - len(self.tokens)


@dataclass
class ScheduledRequests:
    generation_requests: list[Request]
    context_requests: list[Request] = field(default_factory=list)


def next_token(tokens: list[int]) -> int:
    """The model: goes on with what followed the last two tokens before, else counts up inside the letters."""
    for place in range(len(tokens) - 3, 0, -1):
        if tokens[place - 1 : place + 1] == tokens[-2:]:
            return tokens[place + 1]
    return 97 + (sum(tokens[-3:]) % 26)


@dataclass
class Output:
    text: str
    finish_reason: str | None = None
    stop_reason: str | None = None
    cumulative_logprob: float = 0.0
    request_perf_metrics: Any = None


@dataclass
class Result:
    outputs: list[Output]
    finished: bool


class Running:
    """What generate_async gives: iterated for results, ended with abort."""

    def __init__(self, llm: LLM, request: Request, streaming: bool) -> None:
        self._llm, self._request, self._streaming = llm, request, streaming
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True

    async def __aiter__(self) -> Any:
        llm, request = self._llm, self._request
        try:
            while not self.aborted and request.num_left > 0:
                llm.step(request)
                done = request.num_left == 0
                if self._streaming or done:
                    text = bytes(request.tokens[request.py_orig_prompt_len :]).decode("latin-1")
                    yield Result([Output(text, "length" if done else None)], done)
                await asyncio.sleep(llm.step_seconds)
        finally:
            llm.free(request)


class LLM:
    """Takes the keyword arguments that model.yaml may hold, and no others."""

    step_seconds = 0.001

    def __init__(self, model: str, *, speculative_config: Any = None, **arguments: Any) -> None:
        assert set(arguments) <= ARGUMENTS, "extra inputs are not permitted"
        assert set(arguments.get("kv_cache_config", ())) <= CACHE_ARGUMENTS, "extra inputs are not permitted"
        self.model, self.arguments = model, arguments
        if isinstance(speculative_config, dict):
            import tensorrt_llm.llmapi as llmapi

            assert llmapi.TAKES_TEXT, "decoding_type: extra inputs are not permitted"
            speculative_config = llmapi.config_of(speculative_config)
        # As if it went to a worker process.
        self.speculative_config = pickle.loads(pickle.dumps(speculative_config))
        self.drafter = getattr(self.speculative_config, "drafter", None)
        self.resources = getattr(self.speculative_config, "resource_manager", None)
        if self.resources is not None:
            self.resources.add_dummy_requests([1 << 63])  # the warm-up
        self.num_steps = self.num_drafted = self.num_accepted = 0
        self._ids = itertools.count(1)
        self.is_shut_down = False

    def generate_async(self, prompt: str, sampling_params: SamplingParams, streaming: bool = False) -> Running:
        tokens = list(prompt.encode())
        return Running(self, Request(next(self._ids), tokens, sampling_params.max_tokens), streaming)

    def step(self, request: Request) -> None:
        drafts = self.draft(request)
        self.num_steps += 1
        self.num_drafted += len(drafts)
        for draft in drafts:
            if next_token(request.tokens) != draft:
                break
            request.tokens.append(draft)
            self.num_accepted += 1
        request.tokens.append(next_token(request.tokens))

    def draft(self, request: Request) -> list[int]:
        """Asks the drafter, and pads the chain to the one length that the model takes; padding is never accepted."""
        if self.drafter is None:
            return []
        assert self.arguments["disable_overlap_scheduler"]
        batch, longest = ScheduledRequests([request]), self.speculative_config.max_draft_len
        self.drafter.prepare_draft_tokens(batch, None)
        drafts = list(request.py_draft_tokens)
        assert all(type(token) is int for token in drafts)
        assert len(drafts) <= min(longest, max(0, request.num_left - 1))
        self.drafter.pad_draft_tokens_for_cuda_graph(batch)
        assert request.py_draft_tokens == drafts + [0] * (longest - len(drafts))
        assert self.drafter._needs_padding_kv_extension
        return drafts

    def free(self, request: Request) -> None:
        if self.resources is not None:
            self.resources.free_resources(request)

    def shutdown(self) -> None:
        if self.resources is not None:
            self.resources.shutdown()
        self.is_shut_down = True
