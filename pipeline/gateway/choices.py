"""OpenAI requests with `n` above 1: sends a separate request for each choice, and merges the responses.

Choice i uses seed + i, so it equals the response to the same request with that seed and n = 1. Dynamo's front end
cannot serve n above 1, because it ends a request at its first finish reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import pydantic_core

from pipeline.gateway.bodies import Json, Receive
from pipeline.gateway.event_stream import DATA, chunk_of, event_of, events_of
from pipeline.gateway.forward import pass_on, until_disconnect
from pipeline.gateway.refusal import Refusal
from pipeline.gateway.response_writer import Responder, send_json
from pipeline.gateway.upstream import Onward, Transport

# Limit in OpenAI's API.
MAX_CHOICES = 128
_SEEDS, _SMALLEST_SEED = 1 << 64, -(1 << 63)
_END = DATA + b"[DONE]\n\n"
_EXTENSION = "nvext"


def choice_requests(sent: Json, num_choices: int) -> list[Json]:
    """The requests of all choices. sent: the client's request without n."""
    seed = sent.get("seed")
    if type(seed) is not int or not 0 <= seed - _SMALLEST_SEED < _SEEDS:  # absent, or refused by the front end
        return [sent] * num_choices
    # The front end expects a signed 64-bit number; the worker converts it to unsigned.
    seeds = ((seed + number - _SMALLEST_SEED) % _SEEDS + _SMALLEST_SEED for number in range(num_choices))
    return [sent | {"seed": seed} for seed in seeds]


async def forward_choices(transport: Transport, onwards: Sequence[Onward], receive: Receive, answer: Responder) -> None:
    """Forward the requests of all choices and send the merged response. If one request fails or the client disconnects,
    cancel all."""
    joined = _Joined(answer, len(onwards))
    async with until_disconnect(receive):
        async with anyio.create_task_group() as tasks:
            for number, onward in enumerate(onwards):
                tasks.start_soon(pass_on, transport, onward, _Choice(joined, number, tasks.cancel_scope))
        if joined.refusal is not None:
            await answer.refuse(joined.refusal)
        else:
            await joined.finish()


class _Joined:
    """The merged response to the client."""

    def __init__(self, answer: Responder, num_choices: int) -> None:
        self.refusal: Refusal | None = None
        self.bodies: list[Json] = [{}] * num_choices
        self.usages: list[Json | None] = [None] * num_choices
        self._answer = answer
        self._num_choices = num_choices
        self._head: Json = {}
        self._is_stream = False
        # Choices write concurrently, and the first must have sent the headers before another sends an event.
        self._lock = anyio.Lock()

    async def start_stream(self, status: int, headers: Mapping[str, str]) -> None:
        async with self._lock:
            if not self._is_stream:
                self._is_stream = True
                await self._answer.start(status, headers, is_stream=True)

    async def event(self, number: int, event: bytes) -> None:
        """Forward one event of a choice's stream, with its index. Keeps back usage and the end of the stream."""
        if event == _END:
            return
        if (chunk := chunk_of(event)) is not None:
            if not chunk.get("choices") and chunk.get("usage"):
                self.usages[number] = chunk
                return
            event = event_of(self._renumbered(chunk, number))
        async with self._lock:
            await self._answer.piece(event)

    async def finish(self) -> None:
        """End the response after the end of all choices."""
        if not self._is_stream:
            await send_json(self._answer, self._whole())
            return
        if usages := [chunk for chunk in self.usages if chunk is not None]:
            last = usages[0] | self._head | {"usage": joined_usage([chunk["usage"] for chunk in usages])}
            await self._answer.piece(event_of(last))
        await self._answer.piece(_END)
        await self._answer.end()

    def _whole(self) -> Json:
        bodies = [self._renumbered(body, number) for number, body in enumerate(self.bodies)]
        choices = sorted((choice for body in bodies for choice in body["choices"]), key=lambda choice: choice["index"])
        whole = bodies[0] | {"choices": choices}
        if all(body.get("usage") for body in bodies):
            whole["usage"] = joined_usage([body["usage"] for body in bodies])
        if any(_EXTENSION in body for body in bodies):
            whole[_EXTENSION] = {"choices": [body.get(_EXTENSION) for body in bodies]}
        return whole

    def _renumbered(self, body: Json, number: int) -> Json:
        """Set the common id and the choices' indices in a response or chunk. For several prompts, the indices of each
        prompt's choices are consecutive."""
        if not self._head:
            self._head = {name: body[name] for name in ("id", "created") if name in body}
        choices = [
            choice | {"index": choice.get("index", 0) * self._num_choices + number} for choice in body["choices"]
        ]
        return body | self._head | {"choices": choices}


class _Choice:
    """Receives the response to the request of one choice."""

    def __init__(self, joined: _Joined, number: int, scope: anyio.CancelScope) -> None:
        self._joined, self._number, self._scope = joined, number, scope
        self._is_stream = False
        self._body = b""

    async def start(self, status: int, headers: Mapping[str, str], is_stream: bool = False) -> None:
        self._is_stream = is_stream
        if is_stream:
            await self._joined.start_stream(status, headers)

    async def piece(self, data: bytes) -> None:
        if not self._is_stream:
            self._body += data
            return
        for event in events_of(data):
            await self._joined.event(self._number, event)

    async def end(self) -> None:
        if not self._is_stream:
            self._joined.bodies[self._number] = pydantic_core.from_json(self._body)

    async def refuse(self, refusal: Refusal, closes: bool = False) -> None:
        """Cancel all choices at the first refusal."""
        if self._joined.refusal is None:
            self._joined.refusal = refusal
        self._scope.cancel()


def joined_usage(usages: Sequence[Mapping[str, Any]]) -> Json:
    """Usage of all choices. Output tokens are summed; the prompt counts once, as in OpenAI's API."""
    joined: Json = dict(usages[0])
    for name in ("completion_tokens", "completion_tokens_details"):
        values = [usage.get(name) for usage in usages]
        if any(value is not None for value in values):
            joined[name] = _sum(values)
    joined["total_tokens"] = joined["prompt_tokens"] + joined["completion_tokens"]
    return joined


def _sum(values: Sequence[Any]) -> Any:
    """Sum of numbers, or of objects member by member, ignoring None."""
    present = [value for value in values if value is not None]
    if present and isinstance(present[0], Mapping):
        names = dict.fromkeys(name for value in present for name in value)
        return {name: _sum([value.get(name) for value in present]) for name in names}
    return sum(present) if present else None
