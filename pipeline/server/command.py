"""What to run for a server: command line, environment, and what removes it afterwards. Here for our own engine and any
other single process; `tensorrt_llm_command` has that of TensorRT-LLM."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.server.guard import DRAIN_SECONDS
from pipeline.server.installation import Installation
from pipeline.server.ports import Ports

VERBOSE_LOG = "triton.log"
# Stands for the id that a start chooses, where a command is only shown.
SHOWN_ID = "la000000000000"
_PLAIN = re.compile(r"[A-Za-z0-9_%+,./:=@-]+")


@dataclass(frozen=True, slots=True)
class StartCommand:
    """environment: all of it. clean_up: command that removes what the processes leave behind; empty for nothing.
    shown: variables that make a difference to what the command does, for people to read. links: other names of folders
    that the command uses, made before it runs and removed with the server's shared memory."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    clean_up: Sequence[str] = ()
    shown: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)

    def to_text(self) -> str:
        """As one would type it."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.shown.items()]
        return " ".join([*variables, shlex.join(self.argv)])


def is_plain(path: Path) -> bool:
    """Whether Triton's Python backend can use it: paths go through a shell that splits and expands them."""
    return _PLAIN.fullmatch(str(path)) is not None


def plain_names(server_id: str, **folders: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """Names for folders that the Python backend can use, and the links that some of them are."""
    names, links = dict(folders), {}
    for key, folder in folders.items():
        if not is_plain(folder):
            names[key] = Path("/dev/shm", f"{server_id}-{key}")
            links[str(names[key])] = str(folder)
    return names, links


# The command for chosen ports and a server's id, which must be the start of its shared memory's names.
MakeCommand = Callable[[Ports, str], StartCommand]


def single_process(
    installation: Installation,
    backends: Path | None,
    repository: Path,
    host: str,
    environment: Mapping[str, str],
    verbose_log: Path | None = None,
) -> MakeCommand:
    """One tritonserver. backends: where its backends lie, None for its own. verbose_log: Triton's log of every step."""

    def make(ports: Ports, server_id: str) -> StartCommand:
        folders = {"repository": repository} | ({} if backends is None else {"backends": backends})
        names, links = plain_names(server_id, **folders)
        words = [str(installation.executable), f"--model-repository={names['repository']}"]
        if backends is not None:
            words.append(f"--backend-directory={names['backends']}")
        words += listening(host, ports)
        if verbose_log is not None:
            words += ["--log-verbose=3", f"--log-file={verbose_log}"]
        words += [
            "--disable-auto-complete-config",
            f"--exit-timeout-secs={DRAIN_SECONDS:.0f}",
            f"--backend-config=python,shm-region-prefix-name={server_id}",
        ]
        return StartCommand(words, environment, links=links)

    return make


def listening(host: str, ports: Ports) -> list[str]:
    """Options for addresses and ports."""
    words = []
    for name, port in zip(("http", "grpc", "metrics"), ports, strict=True):
        words += [f"--{name}-address={host}", f"--{name}-port={port}"]
    return words
