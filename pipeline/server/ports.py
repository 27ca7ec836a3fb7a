"""Ports to listen on: the asked-for ones, checked, or free ones."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack
from ipaddress import IPv4Address
from typing import NamedTuple

from pipeline.config.schema import ServerConfig
from pipeline.errors import ServerError


class Ports(NamedTuple):
    """Where a server listens."""

    http: int
    grpc: int
    metrics: int


def choose_ports(server: ServerConfig) -> Ports:
    """The ports of a server section, with each 0 replaced by a free one.

    A free port may be taken before the server binds it; whoever starts the server tries again then. Raises ServerError
    if an asked-for port is in use, two are the same, or the server cannot listen at that address."""
    asked = {"http_port": server.http_port, "grpc_port": server.grpc_port, "metrics_port": server.metrics_port}
    fixed = [port for port in asked.values() if port]
    if len(set(fixed)) < len(fixed):
        raise ServerError(f"Two of the server's ports are the same: {asked}. Give each its own, or 0 for a free one.")
    try:
        IPv4Address(server.host)
    except ValueError as error:  # with a name Triton starts, and its HTTP service is nowhere to be reached
        raise _no_place(server.host, "it is no IPv4 address") from error
    chosen = []
    with ExitStack() as stack:  # all are held until all are chosen, so that they differ
        for name, port in asked.items():
            held = stack.enter_context(socket.socket())
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                held.bind((server.host, port))
            except PermissionError as error:
                raise ServerError(f"Port {port} (server.{name}) needs privileges; choose one from 1024 on.") from error
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise _no_place(server.host, str(error.strerror)) from error
                raise ServerError(
                    f"Port {port} (server.{name}) on {server.host} cannot be used: {error.strerror}. Stop what listens "
                    f"there (`lookahead stop`, if it is ours), or take another: --set server.{name}=0 finds a free one."
                ) from error
            chosen.append(held.getsockname()[1])
    return Ports(*chosen)


def _no_place(host: str, reason: str) -> ServerError:
    return ServerError(
        f"server.host is {host}, where the server cannot listen: {reason}. Set it to an IPv4 address of this machine: "
        "127.0.0.1, or 0.0.0.0 for all of them."
    )
