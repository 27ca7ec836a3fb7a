"""Clients of a running server over gRPC and HTTP, with and without streaming."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal
from urllib.parse import urlsplit

import grpc
import httpx
import numpy as np
from tritonclient.grpc import service_pb2_grpc

from pipeline.errors import RequestError, ServerError
from pipeline.gateway.upstream_errors import RESTARTING
from pipeline.repository.names import FRONT_MODEL
from pipeline.triton_grpc import CHANNEL, infer_request, tensors_of
from pipeline.triton_models.tensors import Array
from pipeline.triton_models.text_codec import check_text

_FLOATS = frozenset({"temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"})
_SEEDS = range(1 << 64)
# Parts of gRPC's messages about a server that speaks HTTP/1.
_OF_HTTP = ("http1", "parsing HTTP/2")
_PROXY = "grpc.enable_http_proxy"
_INT32 = range(-(1 << 31), 1 << 31)
Protocol = Literal["grpc", "http"]
# Environment variable with the API key of the requests.
KEY_VARIABLE = "LOOKAHEAD_API_KEY"


@dataclass(frozen=True, slots=True)
class TextQuery:
    """Inputs of `lookahead_bls` by name. An input with the value None is not sent. messages: a conversation as JSON."""

    text_input: str
    max_tokens: int
    stream: bool = True
    strategy: str | None = None
    namespace: str | None = None
    use_chat_template: bool | None = None
    system_prompt: str | None = None
    messages: str | None = None
    prediction: str | None = None
    stop_words: Sequence[str] | None = None
    bad_words: Sequence[str] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    min_tokens: int | None = None
    seed: int | None = None
    end_id: int | None = None
    num_draft_tokens: int | None = None
    return_statistics: bool | None = None

    def sent(self) -> dict[str, Any]:
        """Names and values of the inputs to send. Raises RequestError if a value does not fit the type of its
        tensor."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        sent = {name: list(v) if isinstance(v, list | tuple) else v for name, v in values if v is not None and v != ()}
        for name, value in sent.items():
            for item in value if isinstance(value, list) else [value]:
                _check_value(name, item)
        return sent


@dataclass(frozen=True, slots=True)
class TextChunk:
    """One response of a stream. finish_reason, statistics: in the last response only."""

    text: str
    finish_reason: str | None = None
    statistics: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole output. total_s: response time in seconds. arrivals_s: arrival of each part of the text, in seconds since
    the request."""

    text: str
    finish_reason: str | None
    statistics: dict[str, Any] | None
    total_s: float
    arrivals_s: tuple[float, ...] = ()


def api_key(environment: Mapping[str, str] = os.environ, names: Sequence[str] = (KEY_VARIABLE,)) -> str:
    """The API key in the first of the variables that is set; empty if none is. Raises ServerError for a key with
    characters that a header cannot hold."""
    name = next((name for name in names if environment.get(name)), None)
    if name is None:
        return ""
    key = environment[name]
    if key != key.strip() or not all(" " <= character <= "~" for character in key):
        raise ServerError(
            f"{name} is not an API key: it begins or ends with a space, or holds line ends, tabs or characters that "
            "are not ASCII. Correct it."
        )
    return key


def key_headers(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Headers with the API key from the environment; none without a key. Raises ServerError as `api_key` does."""
    key = api_key(environment)
    return {"authorization": f"Bearer {key}"} if key else {}


def stream_text(query: TextQuery, url: str, protocol: Protocol, timeout_s: float = 300.0) -> Iterator[TextChunk]:
    """Yield responses as they arrive. url: host:port for gRPC, http://host:port for HTTP. Closing the iterator early
    cancels the request. Raises RequestError with the server's message, or ServerError if the server cannot be
    reached."""
    return _stream_grpc(query, url, timeout_s) if protocol == "grpc" else _stream_http(query, url, timeout_s)


def complete(
    query: TextQuery,
    url: str,
    protocol: Protocol,
    timeout_s: float = 300.0,
    on_text: Callable[[str], None] = lambda text: None,
) -> Completion:
    """Send one request and join its responses. on_text: called with each part of the text as it arrives."""
    started = time.perf_counter()
    parts: list[str] = []
    arrivals: list[float] = []
    last = TextChunk("")
    for last in stream_text(query, url, protocol, timeout_s):
        if last.text:
            parts.append(last.text)
            arrivals.append(time.perf_counter() - started)
        on_text(last.text)
    seconds = time.perf_counter() - started
    return Completion("".join(parts), last.finish_reason, last.statistics, seconds, tuple(arrivals))


def is_behind_proxy(url: str) -> bool:
    """Whether the proxy of the environment applies to a URL. It does not apply to this machine. url: host:port or
    http://host:port. Raises ServerError for other formats."""
    reason = "it has no host"
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        host, port = parts.hostname, parts.port  # the port is checked when it is parsed
    except ValueError as error:
        host, reason = None, str(error)
    else:
        if parts.scheme not in ("", "http", "https"):
            host, reason = None, f"{parts.scheme}:// is not supported"
        elif host and not parts.scheme and port is None:
            host, reason = None, "it has no port"  # gRPC would take 443
    if not host or ("[" in url and ":" not in host) or any(character.isspace() for character in url):
        raise ServerError(
            f"{url!r} is not an address of a server: {reason}. Use host:port for gRPC and http://host:port for HTTP."
        )
    return not (host in ("localhost", "::1") or host.startswith("127."))


def _stream_http(query: TextQuery, url: str, timeout_s: float) -> Iterator[TextChunk]:
    endpoint = f"{url}/v2/models/{FRONT_MODEL}/{'generate_stream' if query.stream else 'generate'}"
    try:
        trust = is_behind_proxy(url)
        with httpx.stream(
            "POST", endpoint, json=query.sent(), headers=key_headers(), timeout=timeout_s, trust_env=trust
        ) as response:
            if response.status_code != 200 or not query.stream:
                yield _chunk_of_json(response.read(), response)
                return
            for line in response.iter_lines():
                if line.startswith("data:"):
                    yield _chunk_of_json(line.encode(), response)
    except httpx.TimeoutException as error:
        raise ServerError(f"{endpoint} did not answer within {timeout_s:.0f} s.") from error
    except httpx.HTTPError as error:
        raise ServerError(f"{endpoint} cannot be reached: {error}. Is it running? See `lookahead status`.") from error


def _stream_grpc(query: TextQuery, url: str, timeout_s: float) -> Iterator[TextChunk]:
    options = [(name, value) for name, value in CHANNEL if name != _PROXY or not is_behind_proxy(url)]
    request = infer_request(FRONT_MODEL, "", {name: _array(name, value) for name, value in query.sent().items()})
    failure: Exception | None = None
    with grpc.insecure_channel(url, options=options) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        call = stub.ModelStreamInfer(iter([request]), timeout=timeout_s, metadata=tuple(key_headers().items()))
        try:
            for answer in call:
                if answer.error_message:  # raised after the end of the stream, see `triton_grpc`
                    failure = RequestError(answer.error_message)
                elif answer.infer_response.outputs:
                    yield _chunk_of_tensors(tensors_of(answer.infer_response))
        except grpc.RpcError as error:
            failure = failure or _call_error(error, url)
        finally:
            call.cancel()  # without effect after the end
    if failure is not None:
        raise failure


def _check_value(name: str, value: Any) -> None:
    if isinstance(value, str):
        check_text(value, name)
    elif isinstance(value, int) and name not in _FLOATS:
        bounds = _SEEDS if name == "seed" else _INT32
        if value not in bounds:
            raise RequestError(f"{name} is {value}; it must be in {bounds[0]} .. {bounds[-1]}")


def _array(name: str, value: Any) -> Array:
    """Convert the value of an input to a tensor: [1, number of values]."""
    row = value if isinstance(value, list) else [value]
    if isinstance(row[0], str):
        return np.asarray([[item.encode() for item in row]], np.object_)
    dtype = np.bool_ if isinstance(row[0], bool) else np.float32 if name in _FLOATS else np.int32
    return np.asarray([row], np.uint64 if name == "seed" else dtype)


def _call_error(error: grpc.RpcError, url: str) -> ServerError:
    """Error of a failed call."""
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return ServerError(f"{url} did not answer in time. See `lookahead status`.")
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return _key_error(url, details)
    if RESTARTING in details:
        return ServerError(f"{url}: {RESTARTING}.")
    if any(part in details for part in _OF_HTTP):
        return ServerError(f"{url} does not speak gRPC; for HTTP write http://{url}. See `lookahead status`.")
    return ServerError(f"{url} cannot be reached: {details}. Is it running? See `lookahead status`.")


def _key_error(url: str, reason: str) -> ServerError:
    return ServerError(f"{url} refused the request: {reason}. The commands take an API key from {KEY_VARIABLE}.")


def _chunk_of_json(body: bytes, response: httpx.Response) -> TextChunk:
    """Convert a JSON text of a response. Raises RequestError with the server's message, and ServerError without a valid
    API key, or for a text of another program."""
    try:
        answer: dict[str, Any] = json.loads(body.removeprefix(b"data:"))
        if "error" not in answer:
            statistics = answer.get("statistics")
            return TextChunk(answer["text_output"], answer.get("finish_reason"), statistics and json.loads(statistics))
        message = answer["error"]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ServerError(f"{response.url} returned status {response.status_code}: {body[:200]!r}") from error
    reason = message["message"] if isinstance(message, dict) and "message" in message else message
    raise _key_error(str(response.url), reason) if response.status_code == 401 else RequestError(reason)


def _chunk_of_tensors(tensors: dict[str, Array]) -> TextChunk:
    values = {name: array.reshape(-1)[0] for name, array in tensors.items()}
    reason, statistics = values.get("finish_reason"), values.get("statistics")
    return TextChunk(
        values["text_output"].decode(), reason and reason.decode(), statistics and json.loads(statistics.decode())
    )
