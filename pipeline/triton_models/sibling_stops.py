"""Forwards stops to the other processes of a model (`scheduling.bls_instances`): Triton gives a stop to any of them.

Each process reads from a datagram socket in the handover folder of its server, which only the user can open.
"""

from __future__ import annotations

import os
import socket
import sys
from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_SUFFIX = ".stops"
# More than the system sends in a datagram.
_LONGEST_BYTES = 1 << 18
# Interval of retries while the socket of another process is full.
_RETRY_S = 0.01


class SiblingStops:
    """Stops from and to the other processes. folder: the handover folder. name: of this process, unique in it. Raises
    OSError if the folder's file system has no sockets."""

    def __init__(self, folder: Path, name: str) -> None:
        # The path of a socket has 107 bytes at most, so paths here begin with the descriptor of the folder.
        self._folder = os.open(folder, os.O_PATH)
        self._own = self._path(f"{name}{_SUFFIX}")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(self._own)

    def start(self, loop: AbstractEventLoop, stop: Callable[[str], object]) -> None:
        """Call `stop` in the loop with the id of each stop that another process sends."""
        self._loop = loop
        loop.add_reader(self._socket, lambda: stop(self._socket.recv(_LONGEST_BYTES).decode(errors="surrogateescape")))

    def send(self, request_id: str) -> None:
        """Send a stop to all other processes."""
        for name in os.listdir(self._path("")):
            if name.endswith(_SUFFIX) and (path := self._path(name)) != self._own:
                self._send(path, request_id.encode(errors="surrogateescape"))

    def close(self) -> None:
        """Remove the socket. Call it after `start`."""
        self._loop.remove_reader(self._socket)
        self._socket.close()
        os.unlink(self._own)
        os.close(self._folder)

    def _path(self, name: str) -> str:
        return f"/proc/self/fd/{self._folder}/{name}"

    def _send(self, path: str, data: bytes) -> None:
        try:
            self._socket.sendto(data, path)
        except BlockingIOError:
            self._loop.call_later(_RETRY_S, self._send, path, data)
        except OSError:  # the process has ended, or the id is longer than a datagram
            pass


def siblings_of(name: str, config: Mapping[str, Any], folder: Path | None) -> SiblingStops | None:
    """The other processes of a Triton model; None if there are none, or none that can be reached. name: of the
    instance. config: of the model. folder: the handover folder, if the server has one."""
    if folder is None or sum(group["count"] for group in config["instance_group"]) == 1:
        return None
    try:
        return SiblingStops(folder, name)
    except OSError as error:
        print(f"{name}: stops reach one process only, because {folder} holds no socket: {error}", file=sys.stderr)
        return None
