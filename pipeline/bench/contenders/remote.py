"""Generation through a running server, with the model `lookahead_bls` over streaming gRPC."""

from __future__ import annotations

import ipaddress
import itertools
import json
import socket
import time
from contextlib import suppress
from typing import Any

import psutil

from pipeline.bench.data.workload import NamedPrompt, Prompt, conversation_of
from pipeline.bench.report.results import MeasuredRequest
from pipeline.decoding.request import GenerationRequest, SamplingParams
from pipeline.decoding.tree import IntArray
from pipeline.errors import ServerError
from pipeline.repository.names import FRONT_MODEL
from pipeline.server.client import Completion, TextQuery, complete

TIMEOUT_S = 600.0
# Limit of the answer to a probe.
_PROBE_SECONDS = 1.0
_namespace_numbers = itertools.count()


def query_of(
    prompt: Prompt,
    max_new_tokens: int,
    strategy: str | None = None,
    sampling: SamplingParams | None = None,
    namespace: str = "",
) -> TextQuery:
    """The server request of a prompt. sampling: None for greedy."""
    sampling = sampling or SamplingParams()
    is_conversation = not prompt.raw and (len(prompt.messages) > 1 or bool(prompt.system))
    return TextQuery(
        text_input=prompt.raw_text if prompt.raw else prompt.messages[-1],
        max_tokens=max_new_tokens,
        strategy=strategy,
        namespace=namespace,
        use_chat_template=not prompt.raw,
        messages=json.dumps(conversation_of(prompt)) if is_conversation else None,
        temperature=None if sampling.greedy else sampling.temperature,
        seed=sampling.seed,
        return_statistics=True,
    )


class RemoteContender:
    """One strategy through the server. A client cannot empty the server's draft sources, so `forget` takes a new
    namespace, in which the trie is empty. The server may reuse KV."""

    def __init__(self, strategy: str, url: str) -> None:
        self.name = strategy
        self._url = url
        self.forget()

    def forget(self) -> None:
        self._namespace = fresh_namespace()

    def generate(self, request: GenerationRequest, prompt: Prompt) -> MeasuredRequest:
        query = query_of(prompt, request.max_new_tokens, self.name, request.sampling, self._namespace)
        return measured_request(complete(query, self._url, "grpc", TIMEOUT_S), request.prompt_ids)


def require_server_of(url: str, prompt: NamedPrompt) -> None:
    """Raise ServerError if the server does not answer or serves another model. Generates one token."""
    query = query_of(prompt.prompt, 1, "none", namespace=fresh_namespace())
    output_ids_of(complete(query, url, "grpc", TIMEOUT_S), prompt.prompt_ids)


def fresh_namespace() -> str:
    """A namespace that no other request to any server has used."""
    return f"bench-{time.time_ns():x}-{next(_namespace_numbers)}"


def measured_request(answer: Completion, prompt_ids: IntArray) -> MeasuredRequest:
    """Combine the server's counts with the client's times. prompt_ids: [prompt_len] the prompt by the local tokenizer.
    Raises ServerError as `output_ids_of` does, and if the server returns no counts."""
    output_ids, counted = output_ids_of(answer, prompt_ids), _statistics_of(answer, "num_steps", "num_draft_tokens")
    return MeasuredRequest(
        output_ids=output_ids,
        steps=int(counted["num_steps"]),
        draft_tokens=int(counted["num_draft_tokens"]),
        accepted_tokens=int(counted.get("num_accepted_tokens", 0)),
        acceptance_lengths=list(counted.get("acceptance_lengths", [])),
        seconds=answer.total_s,
        ttft_s=answer.arrivals_s[0] if answer.arrivals_s else answer.total_s,
        draft_seconds=float(counted.get("draft_seconds", 0.0)),
        finish_reason=answer.finish_reason,
    )


def output_ids_of(answer: Completion, prompt_ids: IntArray) -> list[int]:
    """The output's token ids, which a server with `server.side_channel_safe` returns as well. Raises ServerError if its
    prompt tokens differ from `prompt_ids`, or if it returns no ids."""
    statistics = _statistics_of(answer, "prompt_ids", "output_ids")
    if statistics["prompt_ids"] != prompt_ids.tolist():
        raise ServerError(
            "The server's tokenizer gives other tokens for a prompt than this engine's, so it serves another model. "
            "Name the served model with --model and --profile."
        )
    return list(statistics["output_ids"])


def _statistics_of(answer: Completion, *names: str) -> dict[str, Any]:
    statistics = answer.statistics or {}
    if missing := [name for name in names if name not in statistics]:
        raise ServerError(
            f"The server's statistics lack {', '.join(missing)}: server.side_channel_safe hides them, or its "
            f"{FRONT_MODEL} is of another version. Start it without that setting, and with this version."
        )
    return statistics


def check_address(url: str, allow_remote: bool = False) -> None:
    """Raise ServerError unless url is host:port of a listening server, which without allow_remote must have an address
    of this machine."""
    host, colon, port = url.rpartition(":")
    host = host.strip("[]")
    if not colon or "/" in url or not port.isdecimal() or int(port) > 65535:
        raise ServerError(f"The server address {url!r} should be host:port, e.g. 127.0.0.1:8001.")
    try:
        found = {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(host, int(port))}
    except OSError as error:
        raise ServerError(f"The host of {url!r} is not known: {error.strerror}.") from error
    others = {ip for ip in found if not ipaddress.ip_address(ip).is_loopback}
    if not allow_remote and not others <= _own_addresses():
        raise ServerError(f"{url} is another machine; use --allow-remote to allow it.")
    try:
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            is_http = _answers_http(connection)
    except OSError as error:
        raise ServerError(f"No server listens on {url} ({error.strerror}). See `lookahead status`.") from error
    if is_http:
        raise ServerError(f"{url} is an HTTP address; use the gRPC address that `lookahead status` shows.")


def _own_addresses() -> set[str]:
    """Addresses of this machine's network interfaces. A server with such a `server.host` listens there only."""
    interfaces = psutil.net_if_addrs().values()
    return {entry.address.partition("%")[0] for entries in interfaces for entry in entries}


def _answers_http(connection: socket.socket) -> bool:
    """Whether a server speaks HTTP/1. A gRPC server closes the connection or sends an HTTP/2 frame."""
    connection.settimeout(_PROBE_SECONDS)
    with suppress(TimeoutError, ConnectionError):
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return connection.recv(5) == b"HTTP/"
    return False
