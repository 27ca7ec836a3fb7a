"""Serving from NVIDIA's container where docker is there and TensorRT-LLM is not.

The image is NVIDIA's with a few packages more (`docker/Dockerfile`), built once per container tag. The container shares
network and shared memory with the machine and sees our folders under the same paths, so that ports, addresses and
leftovers are the same as those of a server outside.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.backends.tensorrt_llm.container import docker_argv, image_of
from pipeline.config.places import CODE, Places
from pipeline.errors import ServerError
from pipeline.files import log_tail

BUILD_LOG = "docker-build.log"


def serving_image(tag: str) -> str:
    """Name of the image made from the container of a tag."""
    return f"lookahead-serving:{tag}"


def build_image_argv(tag: str, home: Path) -> tuple[str, ...]:
    """The command that makes the image."""
    folder = home / "docker"
    return (
        "docker", "build", "--build-arg", f"BASE={image_of(tag)}", "--tag", serving_image(tag),
        "--file", str(folder / "Dockerfile"), str(folder),
    )  # fmt: skip


def ensure_image(tag: str, home: Path, run_dir: Path) -> None:
    """Build the image unless docker has it. Raises ServerError with the end of docker's words if that fails."""
    image = serving_image(tag)
    if subprocess.run(["docker", "image", "inspect", image], capture_output=True, check=False).returncode == 0:
        return
    run_dir.mkdir(parents=True, exist_ok=True)
    log = run_dir / BUILD_LOG
    with log.open("wb") as file:
        done = subprocess.run(
            build_image_argv(tag, home), stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, check=False
        )
    if done.returncode != 0:
        raise ServerError(
            f"The image {image} could not be built (docker build ended with code {done.returncode}). End of {log}:\n"
            + log_tail(log)
        )


def container_name(server_id: str) -> str:
    """Name of a server's container."""
    return f"lookahead-{server_id}"


def run_argv(
    tag: str,
    argv: Sequence[str],
    server_id: str,
    variables: Mapping[str, str],
    places: Places,
    files: Sequence[Path] = (),
) -> tuple[str, ...]:
    """`docker run` around the command of a server. variables: of the server's environment. files: what it reads from
    elsewhere."""
    words = docker_argv(
        serving_image(tag),
        argv,
        writable=[places.engines],
        readable=[CODE, places.home, *files],
        work_dir=places.home,
        environment=variables,
    )
    # docker run passes signals on; --init hands them to mpirun or tritonserver, and reaps their children.
    return (*words[:2], "--name", container_name(server_id), "--init", "--network", "host", *words[2:])


def remove_argv(server_id: str) -> tuple[str, ...]:
    """The command that removes a server's container if it is still there."""
    return ("docker", "rm", "--force", container_name(server_id))
