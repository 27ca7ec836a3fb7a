"""Reads API key, time limit, trace and session from the headers of a request."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from starlette.requests import Request

from pipeline.gateway.refusal import Refusal
from pipeline.gateway.tenants import Tenant

TIMEOUT_HEADER, SESSION_HEADER = "x-request-timeout", "x-session-id"
_DYNAMO_SESSION = "x-dynamo-session-id"
_MAX_TRACE_LENGTH = 512
# float() also reads "1_0", "inf" and digits of other scripts.
_SECONDS = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?", re.I)


def key_of(headers: Mapping[str, str]) -> str | None:
    """The API key in the headers of an HTTP request, or in the metadata of a gRPC call; None without one."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    bearer = key.strip() if scheme.lower() == "bearer" else ""
    return bearer or headers.get("x-api-key")


def timeout_of(request: Request, longest_s: float) -> float:
    """The client's time limit in seconds, at most longest_s. Raises Refusal (400) if it is not a positive number."""
    asked = request.headers.get(TIMEOUT_HEADER)
    if asked is None:
        return longest_s
    timeout_s = float(asked) if _SECONDS.fullmatch(asked) else 0.0
    if timeout_s <= 0:
        raise Refusal(400, f"{TIMEOUT_HEADER} is {asked[:40]!r}; it must be a number of seconds above 0")
    return min(timeout_s, longest_s)


def trace_headers(request: Request) -> dict[str, str]:
    """The client's W3C trace context headers, without invalid ones."""
    found = {name: request.headers.get(name, "") for name in ("traceparent", "tracestate")}
    return {name: value for name, value in found.items() if value.isascii() and 0 < len(value) <= _MAX_TRACE_LENGTH}


def session_headers(request: Request, tenant: Tenant, conversation: str | None) -> dict[str, str]:
    """Dynamo's header that keeps a session on one worker. The session is the client's header, else the conversation.
    Sessions of different tenants differ."""
    if (name := request.headers.get(SESSION_HEADER, conversation)) is None:
        return {}
    return {_DYNAMO_SESSION: hashlib.sha256(f"{tenant.name}/{name}".encode(errors="replace")).hexdigest()[:32]}
