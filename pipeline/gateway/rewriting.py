"""Rewrites responses: the front end's to OpenAI's or vLLM's format, and Triton's to the client's own request id.

draft_figures    moves draft statistics from `nvext.engine_data`, the only place that the front end offers, to
                 `metrics.speculative_decoding`, where vLLM has them and load generators such as AIPerf read them
log_probs        converts the alternatives of the completions API from lists to objects from token to log probability,
                 and adds `text_offset`, the position of each token in the text
alternatives     limits the alternatives of the chat API to the requested number
own_id           removes the tenant's prefix from the request id
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

import pydantic_core

from pipeline.gateway.annotations import FIGURES
from pipeline.gateway.bodies import Json, write_json
from pipeline.gateway.event_stream import DATA, events_of
from pipeline.gateway.refusal import Refusal
from pipeline.gateway.response_writer import Responder
from pipeline.gateway.tenants import Tenant
from pipeline.gateway.upstream import HEADER_LENGTH


class Rewrite(NamedTuple):
    """A change of a response. mark: bytes that a response or event must contain to be changed. change: converts its
    JSON text."""

    mark: bytes
    change: Callable[[bytes], bytes]


class RewritingResponder:
    """Forwards one response to `answer` with a rewrite applied."""

    def __init__(self, answer: Responder, rewrite: Rewrite) -> None:
        self._answer = answer
        self._rewrite = rewrite
        self._status, self._headers = 200, dict[str, str]()
        self._is_stream = False
        self._body = bytearray()

    async def start(self, status: int, headers: Mapping[str, str], is_stream: bool = False) -> None:
        self._is_stream = is_stream
        if is_stream:
            await self._answer.start(status, headers, is_stream=True)
        else:
            self._status, self._headers = status, dict(headers)

    async def piece(self, data: bytes) -> None:
        if not self._is_stream:
            self._body += data
        elif self._rewrite.mark in data and data.endswith(b"\n\n"):  # otherwise a part of a long event
            await self._answer.piece(b"".join(map(self._rewritten_event, events_of(data))))
        else:
            await self._answer.piece(data)

    async def end(self) -> None:
        if not self._is_stream:
            length = int(self._headers.get(HEADER_LENGTH, len(self._body)))
            value = self._rewritten(bytes(self._body[:length]))
            if HEADER_LENGTH in self._headers:
                self._headers[HEADER_LENGTH] = str(len(value))
            body = value + self._body[length:]  # the data of tensors
            await self._answer.start(self._status, self._headers | {"content-length": str(len(body))})
            await self._answer.piece(body)
        await self._answer.end()

    async def refuse(self, refusal: Refusal, closes: bool = False) -> None:
        await self._answer.refuse(refusal, closes)

    def _rewritten_event(self, event: bytes) -> bytes:
        if not event.startswith(DATA + b"{"):
            return event
        return DATA + self._rewritten(event.removeprefix(DATA)).removesuffix(b"\n\n") + b"\n\n"

    def _rewritten(self, body: bytes) -> bytes:
        return self._rewrite.change(body) if self._rewrite.mark in body else body


def _of_json(change: Callable[[Json], Json]) -> Callable[[bytes], bytes]:
    return lambda body: write_json(change(pydantic_core.from_json(body)))


def own_id(tenant: Tenant) -> Rewrite:
    mark = b'"id":"' + tenant.prefix.encode()  # in no generated text, because JSON escapes the quotes
    return Rewrite(mark, lambda body: body.replace(mark, b'"id":"'))


def _move_figures(body: Json) -> Json:
    """Move draft statistics to the root. A response with the mark in its text only stays unchanged."""
    engine_data = (body.get("nvext") or {}).get("engine_data") or {}
    if (figures := engine_data.pop(FIGURES, None)) is None:
        return body
    return body | {"metrics": {FIGURES: figures}}


def log_probs() -> Rewrite:
    """Rewrite of one response. Offsets continue from chunk to chunk of a stream."""
    ends: dict[int, int] = defaultdict(int)  # length of the text so far, by choice

    def change(body: Json) -> Json:
        for choice in body.get("choices") or []:
            found = choice.get("logprobs") or {}
            for place, alternatives in enumerate(found.get("top_logprobs") or []):
                if isinstance(alternatives, list):
                    # Of two tokens with the same text, keep the more probable one, which comes first.
                    found["top_logprobs"][place] = {
                        entry["token"]: entry["logprob"] for entry in reversed(alternatives)
                    }
            offsets = []
            for token in found.get("tokens") or []:
                offsets.append(ends[choice["index"]])
                ends[choice["index"]] += len(token)
            found["text_offset"] = offsets
        return body

    return Rewrite(b'"text_offset"', _of_json(change))


def alternatives(num_asked: int) -> Rewrite:
    """The front end appends the chosen token to the most probable ones, and sends one if none is requested."""

    def change(body: Json) -> Json:
        for choice in body.get("choices") or []:
            for token in (choice.get("logprobs") or {}).get("content") or []:
                token["top_logprobs"] = token["top_logprobs"][:num_asked]
        return body

    return Rewrite(b'"top_logprobs":[', _of_json(change))


DRAFT_FIGURES = Rewrite(f'"{FIGURES}"'.encode(), _of_json(_move_figures))
