"""Start command of a server: command line, environment, and clean-up."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Ports(NamedTuple):
    """Ports of a server."""

    http: int
    grpc: int
    metrics: int


@dataclass(frozen=True, slots=True)
class Listening:
    """Addresses of tritonserver. host: of HTTP and gRPC. key: required by its interfaces, None for no key."""

    host: str
    metrics_host: str
    ports: Ports
    key: str | None = None


@dataclass(frozen=True, slots=True)
class StartCommand:
    """environment: complete. clean_up: command that removes what the processes leave behind; empty for nothing. shown:
    the environment variables to display. links: symbolic links that the command uses, created before it runs and
    removed with the server's shared memory."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    clean_up: Sequence[str] = ()
    shown: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)

    def to_text(self) -> str:
        """The command as typed in a shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.shown.items()]
        return " ".join([*variables, shlex.join(self.argv)])


# The command for chosen addresses and a server's id, which must be the start of its shared memory's names.
MakeCommand = Callable[[Listening, str], StartCommand]
