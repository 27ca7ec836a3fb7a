"""Sends a response of the gateway: forwarded pieces, or an error in the format of the client's API."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Literal

from pipeline.gateway.bodies import write_json
from pipeline.gateway.refusal import Refusal

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Style = Literal["triton", "openai"]
JSON = {"content-type": "application/json"}
_STREAM_HEADERS = {"content-type": "text/event-stream", "cache-control": "no-cache", "x-accel-buffering": "no"}
_TYPES = {401: "authentication_error", 429: "rate_limit_error"}
# Codes of OpenAI's API by status.
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}


class ResponseWriter:
    """Writes one response to the client. style: format of errors. request_id: the gateway's id of the request."""

    def __init__(self, send: Send, style: Style) -> None:
        self.request_id = secrets.token_hex(16)
        self._send = send
        self._style = style
        self._headers = {"x-request-id": self.request_id}
        self._started = self._is_stream = False

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Begin the response."""
        self._started = True
        pairs = [(name.encode(), value.encode("latin-1")) for name, value in {**headers, **self._headers}.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def start_stream(self) -> None:
        """Begin a stream whose pieces consist of complete server-sent events, unless it has begun."""
        if not self._started:
            self._is_stream = True
            await self.start(200, _STREAM_HEADERS)

    async def piece(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """End the response. data: its last piece."""
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def send(self, body: bytes, headers: Mapping[str, str], status: int = 200) -> None:
        """Send a whole response."""
        await self.start(status, {**headers, "content-length": str(len(body))})
        await self.end(body)

    async def refuse(self, refusal: Refusal) -> None:
        """Send the error as the whole response, or as the last event of a stream that has begun. Any other response
        that has begun is cut off."""
        body = write_json(_error_body(refusal, self._style))
        if not self._started:
            await self.send(body, JSON | refusal.headers, refusal.status)
        elif self._is_stream:
            await self.end(b"data: " + body + b"\n\n")


def _error_body(refusal: Refusal, style: Style) -> dict[str, Any]:
    """JSON of an error response, in the format of Triton or of OpenAI's API."""
    if style == "triton":
        return {"error": refusal.sentence}
    kind = _TYPES.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "server_error")
    code = refusal.code or _CODES.get(refusal.status) or refusal.status
    return {"error": {"message": refusal.sentence, "type": kind, "code": code, "param": refusal.param}}
