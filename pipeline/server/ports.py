"""Checks requested ports and chooses free ones."""

from __future__ import annotations

import errno
import os
import random
import secrets
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import count, islice
from typing import NamedTuple

from pipeline.config.schema import ServerConfig
from pipeline.engine.start_command import Listening, Ports
from pipeline.errors import ServerError

LOOPBACK = "127.0.0.1"
# Outgoing connections use ports from 32768 on in Linux; one could take a free port before its server listens there.
# Dynamo also parses the port of a worker's metrics as a signed 16-bit number.
_FREE = range(20000, 1 << 15)
# Each process tries them in order, from a random one on, so that two processes rarely choose the same port.
_numbers = count(random.randrange(len(_FREE)))


class OpenAIPorts(NamedTuple):
    """Ports of the OpenAI API. public: for clients. front_end: of the front end, which the gateway uses. Both are the
    same without a gateway."""

    public: int
    front_end: int


def choose_ports(server: ServerConfig, with_openai: bool = False) -> tuple[Ports, Listening, OpenAIPorts]:
    """Choose the public ports of a server section, with each 0 replaced by a free one, Triton's addresses, and the
    ports of the OpenAI API. Without a gateway Triton uses the public ports, else free ones of the loopback device.
    with_openai: whether the OpenAI API uses its port; else it gets a free one. Raises ServerError as `bind_ports`
    does."""
    asked = {"http_port": server.http_port, "grpc_port": server.grpc_port, "metrics_port": server.metrics_port}
    asked["openai_port"] = server.openai_port if with_openai else 0
    if server.gateway.enabled:  # one call, so that all ports differ
        asked |= dict.fromkeys(("inner HTTP port", "inner gRPC port", "inner metrics port", "inner OpenAI port"), 0)
    chosen = list(bind_ports(server.host, asked).values())
    public, inner = chosen[:4], chosen[-4:]
    key = secrets.token_hex(16) if server.gateway.enabled else None
    return Ports(*public[:3]), listening_of(server, Ports(*inner[:3]), key), OpenAIPorts(public[3], inner[3])


def listening_of(server: ServerConfig, ports: Ports, key: str | None) -> Listening:
    """Triton's addresses for a server section. ports: Triton's ports. key: Triton's access key behind a gateway."""
    return Listening(LOOPBACK if server.gateway.enabled else server.host, ports, key)


def bind_ports(host: str, asked: Mapping[str, int]) -> dict[str, int]:
    """Check requested ports, and replace each 0 by a free port. asked: ports by the name of their setting in the server
    section; the result has the same keys.

    The ports are not reserved: another process may bind one before the caller, which must then try again. Raises
    ServerError if requested ports are in use, or this machine cannot listen on host.
    """
    chosen, taken = {}, []
    with ExitStack() as stack:  # all sockets stay open until the last port is chosen, so that the ports differ
        for name, port in asked.items():
            if (held := _bound(host, name, port)) is None:
                taken.append(name)
            else:
                chosen[name] = stack.enter_context(held).getsockname()[1]
    if taken:
        ports, s = ", ".join(f"{asked[name]} (server.{name})" for name in taken), "s" * (len(taken) > 1)
        raise ServerError(
            f"Port{s} {ports} on {host} cannot be used: {os.strerror(errno.EADDRINUSE)}. Stop the program that listens "
            "there (for our servers: `lookahead stop`), or use a free port: "
            + " ".join(f"--set server.{name}=0" for name in taken)
        )
    return chosen


def _bound(host: str, name: str, port: int) -> socket.socket | None:
    """A socket at a port, or at a free one for 0. None if the port is in use."""
    try:  # a socket that does not listen would let another one bind its port
        return socket.create_server((host, port or free_port(host)))
    except PermissionError as error:
        raise ServerError(f"Port {port} (server.{name}) needs privileges; choose 1024 or higher.") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        reason = os.strerror(error.errno or 0)  # without the address, which `create_server` adds
        raise ServerError(
            f"The server cannot listen on server.host = {host}: {reason}. Set it to an IPv4 address of this machine: "
            "127.0.0.1, or 0.0.0.0 for all."
        ) from error


def free_port(host: str) -> int:
    """A free port. Raises OSError if this machine cannot listen at that address, ServerError if all are in use."""
    for number in islice(_numbers, len(_FREE)):
        port = _FREE[number % len(_FREE)]
        try:
            socket.create_server((host, port)).close()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return port
    raise ServerError(f"No port in {_FREE.start} .. {_FREE.stop - 1} is free on {host}. Stop a program that uses one.")
