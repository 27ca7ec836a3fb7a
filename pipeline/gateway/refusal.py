"""Error response of the gateway: HTTP status, gRPC status and message."""

from __future__ import annotations

from collections.abc import Mapping

import grpc

from pipeline.errors import RequestError

_GRPC_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}

# Header that OpenAI's clients obey. They send a request with status 408, 409, 429, 500 or more again, twice by default.
# One that would fail again would take its full time again.
FINAL = {"x-should-retry": "false"}


class FieldError(RequestError):
    """Raised for a wrong field of a request of the OpenAI API. field: its path, with which the sentence begins. reason:
    the rest of the sentence."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field} {reason}")
        self.field = field


class Refusal(Exception):
    """Raised for a request that the gateway refuses. sentence: message for the client. retry_after_s: value of the
    header Retry-After, if a retry may help. headers: further headers of the response. code: error code of the OpenAI
    API, if it is not the status. param: the wrong field of the request, if it is one."""

    def __init__(
        self,
        status: int,
        sentence: str,
        retry_after_s: int | None = None,
        headers: Mapping[str, str] | None = None,
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(sentence)
        self.code = code
        self.param = param
        self.status = status
        self.sentence = sentence
        self.retry_after_s = retry_after_s
        self.headers = dict(headers or {})
        if retry_after_s is not None:
            self.headers["retry-after"] = str(retry_after_s)

    @property
    def grpc_code(self) -> grpc.StatusCode:
        return _GRPC_CODES.get(self.status, grpc.StatusCode.UNKNOWN)
