"""Start command of a server: command line, environment, and clean-up."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Ports(NamedTuple):
    """Ports of tritonserver's HTTP and gRPC interfaces and of its metrics."""

    http: int
    grpc: int
    metrics: int


@dataclass(frozen=True, slots=True)
class Listening:
    """Addresses of tritonserver. key: API key of its interfaces, if any."""

    host: str
    ports: Ports
    key: str | None = None


@dataclass(frozen=True, slots=True)
class StartCommand:
    """A command that starts a server. environment: all variables. clean_up: command that removes leftovers of the
    processes, if any. shown: the variables to display. links: symbolic links that the command uses, created before it
    runs and removed with the server's shared memory."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    clean_up: Sequence[str] = ()
    shown: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)

    def to_text(self) -> str:
        """The command as typed in a shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.shown.items()]
        return " ".join([*variables, shlex.join(self.argv)])


# Returns the command for addresses and a server id, with which the names of its shared memory must begin.
MakeCommand = Callable[[Listening, str], StartCommand]
