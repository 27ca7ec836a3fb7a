"""Command line and environment of one tritonserver."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pipeline.config.schema import ServerConfig
from pipeline.engine.start_command import Listening, MakeCommand, Ports, StartCommand
from pipeline.gateway.spec import TRITON_KEY_HEADER
from pipeline.server.guard import DRAIN_SECONDS
from pipeline.server.installation import Installation
from pipeline.server.ports import listening_of

# Placeholder in printed commands for the id that a start generates.
SHOWN_ID = "la000000000000"
SHOWN_KEY = "CHOSEN-BY-THE-START"
_RESTRICTED = (
    *("metadata", "inference", "shared-memory", "model-config", "model-repository"),
    *("statistics", "trace", "logging"),
)
_PLAIN = re.compile(r"[A-Za-z0-9_%+,./:=@-]+")


def is_plain(path: Path) -> bool:
    """Whether Triton's Python backend can use the path. The backend passes paths through a shell, which splits and
    expands them."""
    return _PLAIN.fullmatch(str(path)) is not None


def plain_names(server_id: str, **folders: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """Paths for folders that Triton's Python backend can open, and the symbolic links to create for them, {link:
    folder}. A folder whose path has special characters gets a link in /dev/shm."""
    names, links = dict(folders), {}
    for key, folder in folders.items():
        if not is_plain(folder):
            names[key] = Path("/dev/shm", f"{server_id}-{key}")
            links[str(names[key])] = str(folder)
    return names, links


def single_process(
    installation: Installation,
    backends: Path | None,
    repository: Path,
    environment: Mapping[str, str],
    verbose_log: Path | None = None,
) -> MakeCommand:
    """Return a function that makes the command of one tritonserver. backends: backend directory, None for Triton's
    default. verbose_log: file for Triton's verbose log."""

    def make(listening: Listening, server_id: str) -> StartCommand:
        folders = {"repository": repository} | ({} if backends is None else {"backends": backends})
        names, links = plain_names(server_id, **folders)
        words = [str(installation.executable), f"--model-repository={names['repository']}"]
        if backends is not None:
            words.append(f"--backend-directory={names['backends']}")
        words += listening_words(listening)
        if verbose_log is not None:
            words += ["--log-verbose=3", f"--log-file={verbose_log}"]
        words += [
            "--disable-auto-complete-config",
            f"--exit-timeout-secs={DRAIN_SECONDS:.0f}",
            f"--backend-config=python,shm-region-prefix-name={server_id}",
        ]
        return StartCommand(words, environment, links=links)

    return make


def listening_words(listening: Listening) -> list[str]:
    """Options of tritonserver for addresses, ports and the access key."""
    words = []
    for name, port in listening.ports._asdict().items():
        words += [f"--{name}-address={listening.host}", f"--{name}-port={port}"]
    return [*words, *restricting_words(listening.key)]


def restricting_words(key: str | None) -> list[str]:
    """Options of tritonserver that require a key for all interfaces except health. Only the gateway and the tools of
    this package have it. Other users of the machine can read it in the command line."""
    if key is None:
        return []
    interfaces = ",".join(_RESTRICTED)
    needed = f"{interfaces}:{TRITON_KEY_HEADER}={key}"
    return [f"--http-restricted-api={needed}", f"--grpc-restricted-protocol={needed}"]


def shown_listening(server: ServerConfig) -> Listening:
    """Triton's addresses for a printed command, with placeholders for the ports and the key that a start generates."""
    if not server.gateway.enabled:
        return listening_of(server, Ports(server.http_port, server.grpc_port, server.metrics_port), None)
    return listening_of(server, Ports(0, 0, 0), SHOWN_KEY)
