"""Implementation of Dynamo's engine interface, which forwards token requests to a Triton server.

Worker process: `python -m pipeline.dynamo.engine SPEC`, with SPEC a `WorkerSpec` as JSON.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from itertools import zip_longest
from pathlib import Path
from typing import Any

from dynamo._core import Context
from dynamo.common.backend import EngineConfig, LLMEngine, LlmRegistration, WorkerConfig
from dynamo.common.backend.health_check import build_health_check_payload
from dynamo.common.backend.metrics import register_engine_registry
from dynamo.common.backend.run import run
from dynamo.common.utils.namespace import get_worker_namespace
from dynamo.llm.exceptions import EngineShutdown, HttpError, InvalidArgument

from pipeline.dynamo.discovery_entries import DiscoveryEntries
from pipeline.dynamo.metrics import PREFIX, DraftMetrics, speculative_decoding
from pipeline.dynamo.output_text import CardTokenizer, OutputText
from pipeline.dynamo.request_tensors import TokenRequest, has_tools, takes_engine_data, token_request
from pipeline.dynamo.servers import TritonServers
from pipeline.dynamo.spec import HAS_FRONT_END, MEMBERSHIP, TRITON_KEYS, WorkerSpec
from pipeline.dynamo.triton_stream import TokenChunk, TritonStream
from pipeline.errors import BusyError, EngineError, RequestError, ServerError, refused
from pipeline.gateway.annotations import ENGINE_DATA, FAULT, FIGURES, REFUSAL, STATISTICS, annotation
from pipeline.gateway.annotations import NAMESPACE as DRAFT_NAMESPACE
from pipeline.server.discovery import FILE_KV, etcd_urls

logger = logging.getLogger(__name__)
# Unit of Dynamo's prefix routing. Our KV cache has no blocks.
KV_BLOCK_SIZE = 16
_READY_POLL_S = 0.1
# Interval of empty chunks in a fleet of several machines. Without them the front end cannot tell a request that waits
# from one whose machine is gone, see `services.SILENCE_S`.
_HEARTBEAT_S = 3.0
_HEARTBEAT: dict[str, Any] = {"token_ids": [], "index": 0}
_FINISH = {"end_token": "stop", "stop_words": "stop", "length": "length", "cancelled": "cancelled"}
_CANCELLED: dict[str, Any] = {"token_ids": [], "index": 0, "finish_reason": "cancelled"}


class TritonEngine(LLMEngine):
    """Engine of one worker. All methods run in one event loop."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._servers: TritonServers | None = None
        self._metrics = DraftMetrics(spec.model)
        self._running: dict[str, asyncio.Queue[Any]] = {}
        self._tokenizer: CardTokenizer | None = None
        self._keeping: asyncio.Task[None] | None = None

    @classmethod
    async def from_args(cls, argv: list[str] | None = None) -> tuple[TritonEngine, WorkerConfig]:
        """Create the engine and its Dynamo configuration. argv: one entry, a `WorkerSpec` as JSON."""
        spec = WorkerSpec.model_validate_json((argv or [""])[0])
        config = WorkerConfig(
            namespace=get_worker_namespace(),
            model_name=Path(spec.card_dir).name,
            served_model_name=spec.model,
            discovery_backend=spec.discovery,
            tool_call_parser=spec.tool_call_parser,
        )
        return cls(spec), config

    async def start(self, worker_id: int) -> EngineConfig:
        """Wait until a Triton server is ready. worker_id: Dynamo's id of this worker. Raises ServerError if none is
        ready within startup_timeout_s."""
        spec = self._spec
        self._tokenizer = CardTokenizer.load(Path(spec.card_dir))
        keys = os.environ.get(TRITON_KEYS, "").split(",")
        own, *others = [TritonStream(url, key) for url, key in zip_longest(spec.triton_urls, keys, fillvalue="")]
        self._servers = TritonServers(own, others, spec.has_other_machines)
        deadline = time.monotonic() + spec.startup_timeout_s
        while await self._servers.first_ready() is None:
            if time.monotonic() > deadline:
                urls = ", ".join(spec.triton_urls)
                raise ServerError(f"Triton at {urls} was not ready in {spec.startup_timeout_s:.0f} s.")
            await asyncio.sleep(_READY_POLL_S)
        if (folder := os.environ.get(FILE_KV)) is not None:
            entries = DiscoveryEntries(Path(folder), worker_id)
            self._list_entries(f"{entries.pattern}\n")
            self._keeping = asyncio.create_task(entries.keep())
        elif spec.discovery == "etcd":  # the id is that of the lease of all its entries
            lines = [f'{url}/v3/lease/revoke {{"ID": "{worker_id}"}}\n' for url in etcd_urls()]
            self._list_entries("".join(lines))
        blocks = math.ceil(spec.max_seq_len / KV_BLOCK_SIZE)
        return EngineConfig(
            model=Path(spec.card_dir).name,
            served_model_name=spec.model,
            runtime_data={MEMBERSHIP: spec.membership.model_dump(), HAS_FRONT_END: spec.has_front_end},
            llm=LlmRegistration(
                context_length=spec.max_seq_len,
                kv_cache_block_size=KV_BLOCK_SIZE,
                total_kv_blocks=blocks * spec.max_batch_size,
                max_num_seqs=spec.max_batch_size,
                max_num_batched_tokens=spec.max_seq_len,
            ),
        )

    def _list_entries(self, text: str) -> None:
        """Write the entries for the guard, which removes them if this process is killed."""
        try:
            Path(self._spec.entries_path).write_text(text, encoding="utf-8")
        except OSError as error:  # a full disk; then Dynamo removes the entries some seconds after a kill
            logger.warning("%s: %s", self._spec.entries_path, error.strerror)

    async def generate(self, request: Any, context: Context) -> AsyncGenerator[Any, None]:
        """Yield the chunks of the output as they arrive.

        An error of the request or of the engine becomes a chunk with the reason in `engine_data`, provided that the
        request allows it (see `annotations.REFUSAL`). A fault in a request with tools becomes the finish reason FAULT.
        Other errors are raised as Dynamo's exceptions: InvalidArgument (400), or HttpError (503 if the server is busy,
        else 500). If the server is gone, raises EngineShutdown, after which Dynamo migrates the request to another
        worker."""
        try:
            async with aclosing(self._chunks(request, context)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except EngineError as error:
            raise EngineShutdown(str(error)) from error
        except Exception as error:
            status, message = _refusal(error)
            if status == 500:
                logger.exception("request %s", context.id())
            last: dict[str, Any] = {"token_ids": [], "index": 0}
            if takes_engine_data(request):
                refusal = {REFUSAL: {"status": status, "message": message}}
                yield last | {"finish_reason": "stop", ENGINE_DATA: refusal}
            elif status == 500 and has_tools(request):
                yield last | {"finish_reason": FAULT}
            else:
                raise (InvalidArgument(message) if status == 400 else HttpError(status, message)) from error

    async def _chunks(self, request: Any, context: Context) -> AsyncGenerator[Any, None]:
        """Yield the chunks of `generate`. Raises RequestError, BusyError, EngineError, or RuntimeError for a fault."""
        wanted = token_request(request, context.id(), self._spec)
        assert self._tokenizer is not None, "call start before generate"
        tokenizer = self._tokenizer.with_special() if wanted.keeps_special else self._tokenizer
        text = OutputText(tokenizer, wanted.prompt_ids, wanted.resumed_ids, wanted.end_tokens)
        if not wanted.num_remaining_tokens:
            rest = "".join(text.push([], is_last=True))
            yield {"token_ids": [], "index": 0, "text": rest, "finish_reason": "length"}
            return
        chunks: asyncio.Queue[Any] = asyncio.Queue()
        tasks = [asyncio.create_task(self._output(wanted, context, chunks))]
        if self._spec.has_other_machines:
            tasks.append(asyncio.create_task(_beat(chunks)))
        self._running[context.id()] = chunks
        num_sent, finished = 0, False
        try:
            while not finished:
                item = await chunks.get()
                if item is None or context.is_stopped():
                    yield _CANCELLED
                    return
                if isinstance(item, Exception):
                    raise item
                if item is _HEARTBEAT:
                    yield _HEARTBEAT
                    continue
                length = wanted.num_before_end(item.token_ids, num_sent)
                if length is not None and (item.finish_reason is None or length < len(item.token_ids)):
                    item = item.cut(length)
                num_sent += len(item.token_ids)
                finished = item.finish_reason is not None
                for chunk in self._dynamo_chunks(wanted, item, num_sent, text):
                    yield chunk
        finally:
            self._running.pop(context.id(), None)
            for task in tasks:
                task.cancel()

    async def abort(self, context: Context) -> None:
        """End a request whose client has left, or that needs no more tokens."""
        if (chunks := self._running.get(context.id())) is not None:
            chunks.put_nowait(None)

    async def cleanup(self) -> None:
        """Close the connections. A second call does nothing."""
        if self._keeping is not None:
            self._keeping.cancel()
        if self._servers is not None:
            await self._servers.close()
            self._servers = None

    async def register_prometheus(self, metrics: Any) -> None:
        register_engine_registry(metrics, self._metrics.registry, prefix_filters=[PREFIX])

    async def health_check_payload(self) -> dict[str, Any] | None:
        """Request for one token, in a separate namespace of the trie."""
        return build_health_check_payload(
            bos_token_id=0, extras={"annotations": [annotation(DRAFT_NAMESPACE, "health check")]}
        )

    async def _output(self, wanted: TokenRequest, context: Context, chunks: asyncio.Queue[Any]) -> None:
        """Put the chunks of the output, or an exception, into a queue."""
        assert self._servers is not None, "call start before generate"
        trace = (context.trace_headers() or {}) if self._spec.is_traced else {}
        try:
            stream = self._servers.generate(wanted, context.id(), trace)
            async with aclosing(stream) as answers:
                async for chunk in answers:
                    chunks.put_nowait(chunk)
        except Exception as error:
            chunks.put_nowait(error)

    def _alternatives(self, top: tuple[tuple[int, float], ...]) -> list[dict[str, Any]]:
        """The most probable tokens of one position, in Dynamo's format."""
        return [
            {"rank": rank, "token_id": token, "token": self._decode(token), "logprob": value}
            for rank, (token, value) in enumerate(top, 1)
        ]

    def _decode(self, token: int) -> str:
        assert self._tokenizer is not None, "call start before generate"
        return self._tokenizer.with_special().decode([token])

    def _dynamo_chunks(
        self, wanted: TokenRequest, chunk: TokenChunk, num_sent: int, text: OutputText
    ) -> Iterator[dict[str, Any]]:
        """The chunks in Dynamo's format: one, or two if log probabilities come with an end token, which has none."""
        ids, texts = chunk.token_ids, text.push(chunk.token_ids, is_last=chunk.finish_reason is not None)
        made: dict[str, Any] = {"index": 0}
        if chunk.log_probs:
            num_scored = len(chunk.log_probs)
            made |= {"log_probs": list(chunk.log_probs), "tokens": texts[:num_scored]}
            if chunk.top:
                made["top_logprobs"] = [*map(self._alternatives, chunk.top)]
            # The front end would show an entry for each token of this chunk.
            if num_scored < len(ids):
                yield made | {"token_ids": ids[:num_scored], "text": "".join(texts[:num_scored])}
                made, ids, texts = {"index": 0}, ids[num_scored:], texts[num_scored:]
        yield made | {"token_ids": ids, "text": "".join(texts)} | self._last_fields(wanted, chunk, num_sent)

    def _last_fields(self, wanted: TokenRequest, chunk: TokenChunk, num_sent: int) -> dict[str, Any]:
        """Fields of the last chunk of an output; none for the others."""
        if chunk.finish_reason is None:
            return {}
        made: dict[str, Any] = {"finish_reason": _FINISH[chunk.finish_reason]}
        statistics = chunk.statistics or {}
        has_figures = "num_draft_tokens" in statistics  # absent with server.side_channel_safe
        if has_figures:
            self._metrics.record(statistics)
        if (has_figures and wanted.has_prediction) or wanted.has_prefix:
            # The front end computes usage itself, except for the prediction tokens and those in front of a text.
            num_tokens = wanted.num_resumed_tokens + num_sent
            made["completion_usage"] = {
                "prompt_tokens": wanted.num_prompt_tokens,
                "completion_tokens": num_tokens,
                "total_tokens": wanted.num_prompt_tokens + num_tokens,
            }
        if has_figures and wanted.has_prediction:
            accepted = statistics["num_accepted_prediction_tokens"]
            made["completion_usage"]["completion_tokens_details"] = {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": max(0, statistics["num_prediction_tokens"] - accepted),
            }
        if wanted.returns_statistics:
            figures = {FIGURES: speculative_decoding(statistics)} if has_figures else {}
            made[ENGINE_DATA] = {STATISTICS: statistics} | figures
        return made


async def _beat(chunks: asyncio.Queue[Any]) -> None:
    """Put heartbeats into a queue until cancelled."""
    while True:
        await asyncio.sleep(_HEARTBEAT_S)
        chunks.put_nowait(_HEARTBEAT)


def _refusal(error: Exception) -> tuple[int, str]:
    """HTTP status and message for an error of a request."""
    if isinstance(error, BusyError):
        return 503, str(error)
    if isinstance(error, RequestError):
        return 400, refused(str(error))
    return 500, repr(error)


if __name__ == "__main__":
    # Dynamo's checksum of a model card covers the path, and a front end logs workers of one model that differ in it.
    os.chdir(Path(WorkerSpec.model_validate_json(sys.argv[1]).card_dir).parent)
    run(TritonEngine, sys.argv[1:])
