"""Puts the figures of a request's drafts where vLLM has them, so that load generators such as AIPerf read them.

The front end can return what a worker adds in `nvext.engine_data` only; vLLM has `metrics.speculative_decoding`.
"""

from __future__ import annotations

from collections.abc import Mapping

import pydantic_core

from pipeline.gateway.bodies import Json, write_json
from pipeline.gateway.forward import events_of
from pipeline.gateway.refusal import Refusal
from pipeline.gateway.response_writer import Responder

FIELD = "speculative_decoding"
_MARK = f'"{FIELD}"'.encode()
_DATA = b"data: "


class DraftFigures:
    """Forwards one response to `answer`, with the figures moved to their place."""

    def __init__(self, answer: Responder) -> None:
        self._answer = answer
        self._status, self._headers = 200, dict[str, str]()
        self._is_stream = False
        self._body = b""

    async def start(self, status: int, headers: Mapping[str, str], is_stream: bool = False) -> None:
        self._is_stream = is_stream
        if is_stream:
            await self._answer.start(status, headers, is_stream=True)
        else:
            self._status, self._headers = status, dict(headers)

    async def piece(self, data: bytes) -> None:
        if not self._is_stream:
            self._body += data
        elif _MARK in data:
            await self._answer.piece(b"".join(map(_moved_event, events_of(data))))
        else:
            await self._answer.piece(data)

    async def end(self) -> None:
        if not self._is_stream:
            body = write_json(_moved(pydantic_core.from_json(self._body))) if _MARK in self._body else self._body
            await self._answer.start(self._status, self._headers | {"content-length": str(len(body))})
            await self._answer.piece(body)
        await self._answer.end()

    async def refuse(self, refusal: Refusal, closes: bool = False) -> None:
        await self._answer.refuse(refusal, closes)


def _moved_event(event: bytes) -> bytes:
    if _MARK not in event or not event.startswith(_DATA):
        return event
    return _DATA + write_json(_moved(pydantic_core.from_json(event.removeprefix(_DATA)))) + b"\n\n"


def _moved(body: Json) -> Json:
    """The response, or the event, with the figures at its root. A text may have the mark without being figures."""
    engine_data = (body.get("nvext") or {}).get("engine_data") or {}
    if (figures := engine_data.pop(FIELD, None)) is None:
        return body
    return body | {"metrics": {FIELD: figures}}
