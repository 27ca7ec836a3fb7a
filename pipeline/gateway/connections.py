"""uvicorn settings of the gateway, with a time limit for the headers of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol


def timed_protocol(header_timeout_s: float) -> type[asyncio.Protocol]:
    """uvicorn's protocol, which closes a connection if the headers of a request do not arrive in time. The time runs
    from the start of the connection, or from the first byte of a later request."""

    class TimedProtocol(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._watch_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch_headers()

        def on_response_complete(self) -> None:
            self._stop_timer()
            super().on_response_complete()

        def _watch_headers(self) -> None:
            if self.conn.their_state is not h11.IDLE:
                self._stop_timer()
            elif self._timer is None:
                self._timer = self.loop.call_later(header_timeout_s, self._expire)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _expire(self) -> None:
            self._timer = None
            if self.conn.their_state is h11.IDLE:
                self.transport.abort()

    return TimedProtocol


def by_port(app: ASGIApp, others: Mapping[int | None, ASGIApp]) -> ASGIApp:
    """Application that dispatches by port. others: application of each port that does not use `app`."""

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        _, port = scope.get("server") or ("", 0)
        await others.get(port, app)(scope, receive, send)

    return dispatch


def uvicorn_options(header_timeout_s: float, max_connections: int) -> dict[str, Any]:
    """Options of `uvicorn.Config` for a server with untrusted clients."""
    return {
        "http": timed_protocol(header_timeout_s),
        "ws": "none",
        "lifespan": "off",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "h11_max_incomplete_event_size": 32768,
        "limit_concurrency": max_connections,
        "timeout_keep_alive": 30,
        "timeout_graceful_shutdown": 5,
    }
