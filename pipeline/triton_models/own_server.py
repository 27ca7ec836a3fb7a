"""gRPC address of the server that runs this process, read from its command line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.errors import ServerError

_EXECUTABLE = "tritonserver"
_DEFAULT_PORT = "8001"
# Addresses that stand for all of the machine's, by one that can be called.
_ALL_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}
# Key of a restricted interface in the metadata of a gRPC call.
_KEY_PREFIX = "triton-grpc-protocol-"


@dataclass(frozen=True, slots=True)
class GrpcAddress:
    """url: host:port. headers: metadata that calls for inference need."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)


def own_address() -> GrpcAddress:
    """The address of the tritonserver among the parents of this process. Raises ServerError if there is none, or it
    takes no plain gRPC."""
    pid = os.getppid()
    while pid > 1:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="surrogateescape").split("\0")
        if Path(words[0]).name == _EXECUTABLE:
            return address_of(words[1:])
        # The name in front may hold anything, so the fields are counted from its closing bracket.
        pid = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    raise ServerError("This process was not started by tritonserver, so it cannot stream from its engine.")


def address_of(words: Sequence[str]) -> GrpcAddress:
    """The address in a server's command line without its name."""
    options = _options(words)
    last = dict(options)
    if _is(last.get("grpc-use-ssl", "0")) or not _is(last.get("allow-grpc", "1")):
        raise ServerError(
            "lookahead_bls streams from a TensorRT-LLM engine over its server's gRPC without TLS. Start tritonserver "
            "without --grpc-use-ssl and --allow-grpc=false; end TLS in front of it."
        )
    host = last.get("grpc-address", "0.0.0.0")
    headers = {}
    for name, value in options:
        if name == "grpc-restricted-protocol":
            interfaces, _, pair = value.partition(":")
            if "inference" in interfaces.split(","):
                key, _, secret = pair.partition("=")
                headers[f"{_KEY_PREFIX}{key}"] = secret
    return GrpcAddress(f"{_ALL_ADDRESSES.get(host, host)}:{last.get('grpc-port', _DEFAULT_PORT)}", headers)


def _options(words: Sequence[str]) -> list[tuple[str, str]]:
    """Options and values, written as --name=value or as --name value; a switch has the value "1"."""
    found: list[tuple[str, str]] = []
    for word, following in zip(words, [*words[1:], "--"], strict=False):
        if not word.startswith("--"):
            continue
        name, separator, value = word[2:].partition("=")
        if not separator:
            value = "1" if following.startswith("--") or not following else following
        found.append((name, value))
    return found


def _is(value: str) -> bool:
    return value.lower() in ("1", "true", "on", "yes")
