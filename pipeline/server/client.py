"""Clients of a running server over gRPC and HTTP, with and without streaming."""

from __future__ import annotations

import json
import os
import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from pipeline.errors import RequestError, ServerError
from pipeline.gateway.errors import RESTARTING
from pipeline.repository.names import FRONT_MODEL
from pipeline.triton_grpc import CHANNEL
from pipeline.triton_models.tensors import Array
from pipeline.triton_models.text_codec import check_text

_FLOATS = frozenset({"temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"})
_SEEDS = range(1 << 64)
_INT32 = range(-(1 << 31), 1 << 31)
# tritonclient's message for a stream that ended before a request could be sent over it.
_DEAD_STREAM = "no longer in valid state"
# gRPC's message about a server that answers with HTTP/1.
_NO_GRPC = "Failed parsing HTTP/2"
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
        host, _ = parts.hostname, parts.port  # the port is checked when it is parsed
    except ValueError as error:
        host, reason = None, str(error)
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
                body = response.read()
                try:
                    yield _chunk_of_json(json.loads(body.removeprefix(b"data:")))
                except ValueError as error:
                    raise ServerError(f"{endpoint} returned status {response.status_code}: {body[:200]!r}") from error
                return
            for line in response.iter_lines():
                if line.startswith("data:"):
                    yield _chunk_of_json(json.loads(line.removeprefix("data:")))
    except httpx.TimeoutException as error:
        raise ServerError(f"{endpoint} did not answer within {timeout_s:.0f} s.") from error
    except httpx.HTTPError as error:
        raise ServerError(f"{endpoint} cannot be reached: {error}. Is it running? See `lookahead status`.") from error


def _stream_grpc(query: TextQuery, url: str, timeout_s: float) -> Iterator[TextChunk]:
    answers: queue.Queue[tuple[Any, Exception | None]] = queue.Queue()
    with _grpc_client(url) as client:
        client.start_stream(
            lambda result, error: answers.put((result, error)), stream_timeout=timeout_s, headers=key_headers()
        )
        try:
            client.async_stream_infer(FRONT_MODEL, _grpc_inputs(query), enable_empty_final_response=True)
        except InferenceServerException as dead:
            # The stream has already ended, because nothing listens at the URL. The stream's own error has the reason.
            raise _named_error(_error_of_stream(answers) or dead, url) from dead
        while True:
            try:
                result, error = answers.get(timeout=timeout_s + 10)
            except queue.Empty:
                raise ServerError(f"{url} did not answer within {timeout_s:.0f} s.") from None
            if error is not None:
                client.stop_stream()  # without cancelling, see below
                raise _named_error(error, url)
            response = result.get_response()
            if response.outputs:
                yield _chunk_of_tensors({output.name: result.as_numpy(output.name) for output in response.outputs})
            if response.parameters["triton_final_response"].bool_param:
                # Cancelling a stream whose requests are all complete makes the server keep the model until it is
                # killed; closing the stream does not.
                client.stop_stream()
                return


def _error_of_stream(answers: queue.Queue[tuple[Any, Exception | None]]) -> Exception | None:
    try:
        return answers.get(timeout=1.0)[1]
    except queue.Empty:
        return None


@contextmanager
def _grpc_client(url: str) -> Iterator[Any]:
    client = triton.InferenceServerClient(url, channel_args=None if is_behind_proxy(url) else CHANNEL)
    try:
        yield client
    finally:
        client.stop_stream(cancel_requests=True)
        client.close()


def _grpc_inputs(query: TextQuery) -> list[Any]:
    inputs = []
    for name, value in query.sent().items():
        array = _array(name, value)
        inputs.append(triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        inputs[-1].set_data_from_numpy(array)
    return inputs


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


def _named_error(error: Exception, url: str) -> Exception:
    """Convert an error of a gRPC stream. An error of one request has no gRPC status; an error with a status ended the
    stream."""
    status = error.status() if isinstance(error, InferenceServerException) else None
    if status == "StatusCode.DEADLINE_EXCEEDED":
        return ServerError(f"{url} did not answer in time.")
    if status == "StatusCode.UNAUTHENTICATED":
        return ServerError(f"{url} refused the request: {error}. The commands take an API key from {KEY_VARIABLE}.")
    if status is None and _DEAD_STREAM not in str(error):
        return RequestError(str(error))
    if _NO_GRPC in str(error):
        return ServerError(f"{url} does not speak gRPC; for HTTP write http://{url}. See `lookahead status`.")
    if RESTARTING in str(error):
        return ServerError(f"{url}: {RESTARTING}.")
    return ServerError(f"{url} cannot be reached: {error}. Is it running? See `lookahead status`.")


def _chunk_of_json(answer: dict[str, Any]) -> TextChunk:
    if "error" in answer:
        raise RequestError(answer["error"])
    statistics = answer.get("statistics")
    return TextChunk(answer["text_output"], answer.get("finish_reason"), statistics and json.loads(statistics))


def _chunk_of_tensors(tensors: dict[str, Array]) -> TextChunk:
    values = {name: array.reshape(-1)[0] for name, array in tensors.items()}
    reason, statistics = values.get("finish_reason"), values.get("statistics")
    return TextChunk(
        values["text_output"].decode(), reason and reason.decode(), statistics and json.loads(statistics.decode())
    )
