"""Running a stage in NVIDIA's container where TensorRT-LLM is not installed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.backends.tensorrt_llm.facts import LOADER_SWITCH, containers

# Settings of the shell that a stage must not inherit: the loader switch would lead to other weights.
DROPPED_VARIABLES = (LOADER_SWITCH,)
# What a login sets. The caller's number has no entry in the container's list of users, and libraries name their cache
# folders after the user: without these, torch ends with a KeyError.
_LOGIN = {"HOME": "/tmp", "USER": "lookahead", "LOGNAME": "lookahead"}


def image_of(tag: str) -> str:
    """Image of a container tag. The rules have refused unknown tags."""
    return containers()[tag].image


def docker_argv(
    image: str,
    argv: Sequence[str],
    *,
    writable: Sequence[Path],
    readable: Sequence[Path],
    work_dir: Path,
    environment: Mapping[str, str],
    ports: Sequence[int] = (),
) -> tuple[str, ...]:
    """`docker run` with all GPUs and the same paths inside as outside.

    Shared memory and locked memory as NVIDIA's images ask for. Files belong to the caller afterwards."""
    words = ["docker", "run", "--rm", "--gpus", "all", "--ipc=host"]
    words += ["--ulimit", "memlock=-1", "--ulimit", "stack=67108864"]
    words += ["--user", f"{os.getuid()}:{os.getgid()}"]
    for name, value in {**_LOGIN, **environment}.items():
        words += ["--env", f"{name}={value}"]
    for path in writable:
        words += ["--volume", f"{path}:{path}"]
    for path in readable:
        words += ["--volume", f"{path}:{path}:ro"]
    for port in ports:
        words += ["--publish", f"{port}:{port}"]
    return (*words, "--workdir", str(work_dir), image, *argv)
