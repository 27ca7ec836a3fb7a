"""The command of one tritonserver: command line and environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pipeline.engine.command import MakeCommand, Ports, StartCommand
from pipeline.server.guard import DRAIN_SECONDS
from pipeline.server.installation import Installation

VERBOSE_LOG = "triton.log"
# Stands for the id that a start chooses, where a command is only shown.
SHOWN_ID = "la000000000000"
_PLAIN = re.compile(r"[A-Za-z0-9_%+,./:=@-]+")


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
