"""gRPC address of the tritonserver that started this process, read from the server's command line."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.errors import ServerError

_EXECUTABLE = "tritonserver"
# Loopback address to call, by listening address that means all interfaces.
_ALL_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}
# Prefix of the metadata key that a call to a restricted interface needs.
_KEY_PREFIX = "triton-grpc-protocol-"


@dataclass(frozen=True, slots=True)
class GrpcAddress:
    """Address of a gRPC interface. url: host:port. headers: metadata of inference calls."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)


def own_address() -> GrpcAddress:
    """Return the address of the tritonserver among the parent processes. Raises ServerError if there is none, or if it
    does not offer gRPC without TLS."""
    return address_of(server_process()[1])


def server_process() -> tuple[int, list[str]]:
    """Pid and options of the tritonserver among the parent processes. Raises ServerError if there is none."""
    pid = os.getppid()
    while pid > 1:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="surrogateescape").split("\0")
        if Path(words[0]).name == _EXECUTABLE:
            return pid, words[1:]
        # The process name may contain any character, so the fields are counted from its closing bracket.
        pid = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    raise ServerError("This process was not started by tritonserver, so it cannot stream from its engine.")


def address_of(words: Sequence[str]) -> GrpcAddress:
    """Return the address in the arguments of tritonserver. Raises ServerError if gRPC is off or needs TLS."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--grpc-address", default="0.0.0.0")
    parser.add_argument("--grpc-port", default="8001")
    parser.add_argument("--grpc-use-ssl", nargs="?", const="1", default="0")
    parser.add_argument("--allow-grpc", nargs="?", const="1", default="1")
    parser.add_argument("--grpc-restricted-protocol", action="append", default=[])
    options, _ = parser.parse_known_args(words)
    if _is(options.grpc_use_ssl) or not _is(options.allow_grpc):
        raise ServerError(
            "lookahead_bls streams from a TensorRT-LLM engine over its server's gRPC without TLS. Start tritonserver "
            "with gRPC and without --grpc-use-ssl; a proxy in front of it can add TLS."
        )
    headers = {}
    for value in options.grpc_restricted_protocol:
        interfaces, _, pair = value.partition(":")
        if "inference" in interfaces.split(","):
            key, _, secret = pair.partition("=")
            headers[f"{_KEY_PREFIX}{key}"] = secret
    host = options.grpc_address
    return GrpcAddress(f"{_ALL_ADDRESSES.get(host, host)}:{options.grpc_port}", headers)


def _is(value: str) -> bool:
    return value.lower() in ("1", "true", "on", "yes")
