"""Responses to OpenAI requests: forwards the requests of all choices, and sends one response to the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import anyio

from pipeline.gateway.bodies import Json, Receive, write_json
from pipeline.gateway.chunk_aggregation import aggregated
from pipeline.gateway.event_stream import END, event_of
from pipeline.gateway.forward import while_connected
from pipeline.gateway.front_end import FrontEndRequest, chunks_of
from pipeline.gateway.openai_body import CheckedChoices
from pipeline.gateway.refusal import Refusal
from pipeline.gateway.response_writer import JSON, ResponseWriter
from pipeline.gateway.responses_output import ResponsesOutput
from pipeline.gateway.rewriting import with_end_apart
from pipeline.gateway.upstream import Transport

_EXTENSION = "nvext"
# Limit of outputs of a response that are computed at the same time. The queue of an engine may not hold 128.
_NUM_CONCURRENT = 32


async def forward_openai(
    transport: Transport,
    requests: Sequence[FrontEndRequest],
    receive: Receive,
    output: ChoicesOutput | ResponsesOutput,
    max_open: int,
) -> None:
    """Forward the requests of all choices and send the response. If one request fails or the client disconnects, cancel
    all. max_open: number of requests that a server serves and queues. Raises Refusal."""
    refusals: list[Refusal] = []
    places = asyncio.Semaphore(min(_NUM_CONCURRENT, max_open))

    async def run(number: int) -> None:
        async with aclosing(chunks_of(transport, requests[number])) as chunks:
            async for chunk in chunks:
                await output.add(number, chunk)

    async def run_among(number: int, cancel_all: Callable[[], None]) -> None:
        try:
            async with places:
                await run(number)
        except Refusal as refusal:
            refusals.append(refusal)
            cancel_all()

    async with while_connected(receive, requests[0].timeout_s):
        if len(requests) == 1:  # the usual case, without the cost of a task
            await run(0)
        else:
            async with anyio.create_task_group() as tasks:
                for number in range(len(requests)):
                    tasks.start_soon(run_among, number, tasks.cancel_scope.cancel)
            if refusals:
                raise refusals[0]
        await output.finish()


class ChoicesOutput:
    """The response to the client, of one choice or joined from several."""

    def __init__(self, answer: ResponseWriter, checked: CheckedChoices) -> None:
        self._answer = answer
        self._rewrites = checked.rewrites
        self._is_whole = checked.is_whole
        self._is_single = len(checked.requests) == 1
        self._num_choices = checked.num_choices
        # Chunks of each choice for a whole response.
        self._chunks: list[list[Json]] = [[] for _ in checked.requests]
        # Chunk with the usage of each choice. A stream that breaks after it and is sent again has another one.
        self._usages: dict[int, Json] = {}
        self._head: Json = {}
        # Choices write concurrently, and the first must have sent the headers before another sends an event.
        self._lock = asyncio.Lock()  # anyio's lock yields to other tasks at each event

    async def add(self, number: int, chunk: Json | bytes) -> None:
        """Add a chunk of a choice, or an event without JSON."""
        if isinstance(chunk, bytes):
            if not self._is_whole and chunk != END:
                await self._send(chunk)
            return
        chunk = self._renumbered(chunk, number)
        for rewrite in self._rewrites:
            chunk = rewrite(chunk)
        if self._is_whole:
            self._chunks[number].append(chunk)
        elif not chunk.get("choices") and chunk.get("usage"):
            # The front end sends the rest of a cut tool call after it; clients expect the usage last.
            self._usages[number] = chunk
        else:
            for each in with_end_apart(chunk):
                await self._send(event_of(each))

    async def finish(self) -> None:
        """End the response after the end of all choices."""
        if self._is_whole:
            bodies = list(map(aggregated, self._chunks))
            await self._answer.send(write_json(bodies[0] if self._is_single else self._joined(bodies)), JSON)
            return
        last = END
        if chunks := list(self._usages.values()):
            last = event_of(chunks[0] | {"usage": self._usage([chunk["usage"] for chunk in chunks])}) + END
        await self._answer.start_stream()
        await self._answer.end(last)

    async def _send(self, event: bytes) -> None:
        async with self._lock:
            await self._answer.start_stream()
            await self._answer.piece(event)

    def _renumbered(self, chunk: Json, number: int) -> Json:
        """Set the common id and the choice's index in a chunk."""
        if not self._head:
            self._head = {name: chunk[name] for name in ("id", "created") if name in chunk}
        choices = [choice | {"index": number} for choice in chunk.get("choices") or []]
        return chunk | self._head | {"choices": choices}

    def _joined(self, bodies: Sequence[Json]) -> Json:
        """The whole response of all choices."""
        whole = bodies[0] | {"choices": [choice for body in bodies for choice in body["choices"]]}
        if all(body.get("usage") for body in bodies):
            whole["usage"] = self._usage([body["usage"] for body in bodies])
        if any(_EXTENSION in body for body in bodies):
            whole[_EXTENSION] = {"choices": [body.get(_EXTENSION) for body in bodies]}
        return whole

    def _usage(self, usages: Sequence[Json]) -> Json:
        return usages[0] if self._is_single else joined_usage(usages, self._num_choices)


def joined_usage(usages: Sequence[Mapping[str, Any]], num_choices: int) -> Json:
    """Usage of all choices. Output tokens are summed; each prompt counts once, as in OpenAI's API. num_choices: of a
    prompt."""
    details = [usage.get("completion_tokens_details") or {} for usage in usages]
    num_tokens = sum(usage["completion_tokens"] for usage in usages)
    num_prompt_tokens = sum(usage["prompt_tokens"] for usage in usages) // num_choices
    joined = {
        **usages[0],
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_tokens,
        "total_tokens": num_prompt_tokens + num_tokens,
    }
    if names := dict.fromkeys(name for each in details for name in each):
        joined["completion_tokens_details"] = {name: sum(each.get(name) or 0 for each in details) for name in names}
    return joined
