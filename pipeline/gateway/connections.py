"""HTTP connections of the gateway: uvicorn's settings, limits of time and number, and checks for all paths."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from itertools import islice
from typing import Any
from urllib.parse import unquote

import h11
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from pipeline.gateway.refusal import Refusal
from pipeline.gateway.response_writer import ResponseWriter, Style

# Host and port of an address of this machine.
_LOCAL = re.compile(r"(?:localhost|127(?:\.\d{1,3}){3}|0\.0\.0\.0|\[::1?\])(?::\d+)?", re.I)
# A request's target that is a whole URL: host and path.
_URL = re.compile(rb"https?://([^/]+)(/.*|)", re.I)
_FOREIGN = (
    "without API keys only programs and pages of this machine are served; use the address localhost or 127.0.0.1, or "
    "set server.api_keys"
)

# Time for running requests to finish after SIGTERM.
GRACE_S = 60
# After waiting this long for the headers of a request, a connection may be closed to make room for another one.
IDLE_S = 1.0
# A client that reads nothing of its response for this time is disconnected, because its request would never end.
STALL_S = 60.0


def bounded_protocol(header_timeout_s: float, max_connections: int) -> type[asyncio.Protocol]:
    """uvicorn's protocol, which closes a connection if the headers of a request do not arrive in time. The time runs
    from the start of the connection, or from the first byte of a later request. A connection whose client stops reading
    is closed too, and one with a response before the end of its request's body: the rest may be long, and has no time
    limit. At max_connections, where uvicorn refuses requests, a new connection replaces those that have waited
    longest for a request."""
    waiting: dict[H11Protocol, float] = {}  # connection -> start of its wait, the earliest first

    class BoundedProtocol(H11Protocol):
        _timer: asyncio.TimerHandle | None = None
        _stall: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._watch_headers()
            num_excess = max(0, len(self.connections) - max_connections + 1)
            for longest, since in list(islice(waiting.items(), num_excess)):
                if self.loop.time() - since >= IDLE_S:
                    del waiting[longest]
                    self.connections.discard(longest)
                    longest.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            self._stop_stall()
            waiting.pop(self, None)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch_headers()

        def on_response_complete(self) -> None:
            self._stop_timer()
            if self.conn.their_state is h11.SEND_BODY:
                self.transport.close()
            super().on_response_complete()
            self._note_waiting()

        def _unsupported_upgrade_warning(self) -> None:
            """uvicorn's warning recommends WebSocket libraries for each request that offers HTTP/2, as Java's client
            does."""

        def pause_writing(self) -> None:
            super().pause_writing()
            self._watch_reader()

        def resume_writing(self) -> None:
            self._stop_stall()
            super().resume_writing()

        def _watch_reader(self) -> None:
            num_bytes = self.transport.get_write_buffer_size()
            self._stall = self.loop.call_later(STALL_S, self._check_reader, num_bytes)

        def _check_reader(self, num_bytes: int) -> None:
            """num_bytes: those that the client had to read when the time began."""
            if self.transport.get_write_buffer_size() < num_bytes:
                self._watch_reader()
            else:
                self.transport.abort()

        def _stop_stall(self) -> None:
            if self._stall is not None:
                self._stall.cancel()
                self._stall = None

        def _note_waiting(self) -> None:
            if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
                waiting.setdefault(self, self.loop.time())
            else:
                waiting.pop(self, None)

        def _watch_headers(self) -> None:
            self._note_waiting()
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

    return BoundedProtocol


def in_origin_form(app: ASGIApp) -> ASGIApp:
    """Application for requests whose target may be a whole URL, as a client sends it that takes the server for a proxy
    (RFC 9112, 3.2.2). The host of the URL replaces the header Host."""

    async def converted(scope: Scope, receive: Receive, send: Send) -> None:
        if (found := _URL.fullmatch(scope["raw_path"])) is not None:
            host, path = found.groups()
            headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
            scope = {**scope, "path": unquote(path.decode("ascii")) or "/", "headers": [*headers, (b"host", host)]}
        await app(scope, receive, send)

    return converted


def with_one_length(app: ASGIApp) -> ASGIApp:
    """Application that refuses a request with two lengths, Content-Length and Transfer-Encoding, and closes the
    connection (RFC 9112, 6.1). A proxy in front may use the other one, and take the rest for a request of its own."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
            await _refuse(scope, send, Refusal(400, "send Content-Length or Transfer-Encoding, not both"))
        else:
            await app(scope, receive, send)

    return checked


def for_this_machine(app: ASGIApp) -> ASGIApp:
    """Application that refuses what a web page of another site sends, if a browser of this machine shows it: requests
    to a foreign name that resolves to this machine (DNS rebinding), or from a foreign origin."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        hosts += [value.decode("latin-1").rpartition("://")[2] for name, value in scope["headers"] if name == b"origin"]
        if all(not host or _LOCAL.fullmatch(host) for host in hosts):
            await app(scope, receive, send)
        else:
            await _refuse(scope, send, Refusal(403, _FOREIGN))

    return checked


async def _refuse(scope: Scope, send: Send, refusal: Refusal) -> None:
    """Send the error in the format of the path's API, and close the connection."""
    style: Style = "openai" if scope["path"].startswith("/v1/") else "triton"
    refusal.headers["connection"] = "close"
    await ResponseWriter(send, style).refuse(refusal)


def for_pages(app: ASGIApp) -> ASGIApp:
    """Application for web pages of other origins, too: with responses that a browser gives to the page (CORS)."""
    of_pages = CORSMiddleware(app, ("*",), allow_methods=("GET", "POST"), allow_headers=("*",), expose_headers=("*",))

    async def by_origin(scope: Scope, receive: Receive, send: Send) -> None:
        # Only browsers send the header. The middleware takes time for each piece of a response.
        is_page = any(name == b"origin" for name, _ in scope["headers"])
        await (of_pages if is_page else app)(scope, receive, send)

    return by_origin


def by_port(app: ASGIApp, others: Mapping[int | None, ASGIApp]) -> ASGIApp:
    """Application that dispatches by port. others: application of each port that does not use `app`."""

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        _, port = scope.get("server") or ("", 0)
        await others.get(port, app)(scope, receive, send)

    return dispatch


def uvicorn_options(header_timeout_s: float, max_connections: int) -> dict[str, Any]:
    """Options of `uvicorn.Config` for a server with untrusted clients."""
    return {
        "http": bounded_protocol(header_timeout_s, max_connections),
        "ws": "none",
        "lifespan": "off",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "h11_max_incomplete_event_size": 32768,
        "limit_concurrency": max_connections,
        "timeout_keep_alive": 30,
        "timeout_graceful_shutdown": GRACE_S,
    }
