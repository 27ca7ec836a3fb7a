"""Sends a response of the gateway: forwarded pieces, or an error in the format of the client's API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Literal, Protocol

from pipeline.gateway.bodies import Json, write_json
from pipeline.gateway.refusal import Refusal

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Style = Literal["triton", "openai"]
_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


class Responder(Protocol):
    """Receiver of one response."""

    async def start(self, status: int, headers: Mapping[str, str], is_stream: bool = False) -> None:
        """Begin the response. is_stream: whether each piece consists of complete server-sent events."""

    async def piece(self, data: bytes) -> None: ...

    async def end(self) -> None: ...

    async def refuse(self, refusal: Refusal, closes: bool = False) -> None:
        """End with an error. closes: whether to close the connection."""


async def send_json(answer: Responder, value: Json) -> None:
    """Send a whole response."""
    body = write_json(value)
    await answer.start(200, {"content-type": "application/json", "content-length": str(len(body))})
    await answer.piece(body)
    await answer.end()


class ResponseWriter:
    """Writes one response to the client. style: format of errors."""

    def __init__(self, send: Send, style: Style, request_id: str) -> None:
        self._send = send
        self._style = style
        self._headers = {"x-request-id": request_id}
        self._started = self._is_stream = False

    async def start(self, status: int, headers: Mapping[str, str], is_stream: bool = False) -> None:
        self._started, self._is_stream = True, is_stream
        pairs = [(name.encode(), value.encode("latin-1")) for name, value in {**headers, **self._headers}.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def piece(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def refuse(self, refusal: Refusal, closes: bool = False) -> None:
        """Send the error as the whole response, or as the last event of a stream that has begun. Any other response
        that has begun is cut off."""
        body = write_json(error_body(refusal, self._style))
        if not self._started:
            headers = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers}
            if closes:
                headers["connection"] = "close"
            await self.start(refusal.status, headers)
            await self.piece(body)
            await self.end()
        elif self._is_stream:
            await self.piece(b"data: " + body + b"\n\n")
            await self.end()


def error_body(refusal: Refusal, style: Style) -> dict[str, Any]:
    if style == "triton":
        return {"error": refusal.sentence}
    kind = _TYPES.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "server_error")
    return {"error": {"message": refusal.sentence, "type": kind, "code": refusal.code or refusal.status, "param": None}}
