"""Ports to listen on: requested ones, checked, or free ones."""

from __future__ import annotations

import errno
import random
import secrets
import socket
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from ipaddress import IPv4Address

from pipeline.config.schema import ServerConfig
from pipeline.engine.command import Listening, Ports
from pipeline.errors import ServerError

LOOPBACK = "127.0.0.1"


def choose_ports(server: ServerConfig) -> tuple[Ports, Listening]:
    """The ports of a server section, with each 0 replaced by a free one, and Triton's addresses: these ports without a
    gateway, else free ones of the loopback device. Raises what `bind_ports` raises."""
    asked = {"http_port": server.http_port, "grpc_port": server.grpc_port, "metrics_port": server.metrics_port}
    if not server.gateway.enabled:
        public = Ports(*bind_ports(server.host, asked).values())
        return public, listening_of(server, public, None)
    # Chosen together, so that they differ.
    inner = {"inner HTTP port": 0, "inner gRPC port": 0, "inner metrics port": 0}
    chosen = list(bind_ports(server.host, asked | inner).values())
    return Ports(*chosen[:3]), listening_of(server, Ports(*chosen[3:]), secrets.token_hex(16))


def listening_of(server: ServerConfig, ports: Ports, key: str | None) -> Listening:
    """Triton's addresses for a server section. ports: its own. key: of a gateway."""
    if server.gateway.enabled:
        return Listening(LOOPBACK, LOOPBACK, ports, key)
    return Listening(server.host, LOOPBACK if server.side_channel_safe else server.host, ports, key)


def bind_ports(host: str, asked: Mapping[str, int]) -> dict[str, int]:
    """Ports by the name of their setting in the server section; each 0 is replaced by a free one.

    Another process may take a free port before it is bound; the caller then tries again. Raises ServerError if a
    requested port is in use, two are the same, or this machine cannot listen at that address.
    """
    fixed = [port for port in asked.values() if port]
    if len(set(fixed)) < len(fixed):
        raise ServerError(
            f"Two of the server's ports are the same: {dict(asked)}. Give each its own, or 0 for a free one."
        )
    try:
        IPv4Address(host)
    except ValueError as error:  # with a host name Triton starts, but its HTTP service cannot be reached
        raise _no_place(host, "it is no IPv4 address") from error
    chosen = {}
    with ExitStack() as stack:  # all are held until all are chosen, so that they differ
        for name, port in asked.items():
            held = stack.enter_context(socket.socket())
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                held.bind((host, port))
            except PermissionError as error:
                raise ServerError(f"Port {port} (server.{name}) needs privileges; choose one from 1024 on.") from error
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise _no_place(host, str(error.strerror)) from error
                raise ServerError(
                    f"Port {port} (server.{name}) on {host} cannot be used: {error.strerror}. Stop what listens "
                    f"there (`lookahead stop`, if it is ours), or take another: --set server.{name}=0 finds a free one."
                ) from error
            chosen[name] = held.getsockname()[1]
    return chosen


def _no_place(host: str, reason: str) -> ServerError:
    return ServerError(
        f"server.host is {host}, where the server cannot listen: {reason}. Set it to an IPv4 address of this machine: "
        "127.0.0.1, or 0.0.0.0 for all of them."
    )


def free_port(host: str, ports: range) -> int:
    """A free port of a range, for programs that accept only some ports. Raises ServerError if all are in use."""
    for port in random.sample(ports, len(ports)):
        with socket.socket() as held, suppress(OSError):
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind((host, port))
            return port
    raise ServerError(f"No port in {ports.start} .. {ports.stop - 1} is free on {host}. Stop what listens there.")
