"""Running a stage or a server in NVIDIA's container where docker is there and TensorRT-LLM is not.

The image of a server is NVIDIA's with a few packages more (`docker/Dockerfile`), built once per container tag. Its
container shares network and shared memory with the machine and sees our folders under the same paths, so that ports,
addresses and leftovers are the same as those of a server outside.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.backends.tensorrt_llm.release_data import LOADER_SWITCH, image_of
from pipeline.config.places import CODE, Places
from pipeline.errors import ServerError
from pipeline.files import log_tail

BUILD_LOG = "docker-build.log"
# Settings of the shell that a stage must not inherit: the loader switch would lead to other weights.
DROPPED_VARIABLES = (LOADER_SWITCH,)
# Variables that a login sets. The caller's user id has no entry in the container's list of users, and libraries name
# their cache folders after the user: without these, torch fails with a KeyError.
_LOGIN = {"HOME": "/tmp", "USER": "lookahead", "LOGNAME": "lookahead"}


def docker_argv(
    image: str,
    argv: Sequence[str],
    *,
    writable: Sequence[Path],
    readable: Sequence[Path],
    work_dir: Path,
    environment: Mapping[str, str],
) -> tuple[str, ...]:
    """`docker run` with all GPUs and the same paths inside as outside.

    Shared memory and locked memory as NVIDIA's images require. Files belong to the caller afterwards.
    """
    words = ["docker", "run", "--rm", "--gpus", "all", "--ipc=host"]
    words += ["--ulimit", "memlock=-1", "--ulimit", "stack=67108864"]
    words += ["--user", f"{os.getuid()}:{os.getgid()}"]
    for name, value in {**_LOGIN, **environment}.items():
        words += ["--env", f"{name}={value}"]
    for volume in [*(f"{path}:{path}" for path in writable), *(f"{path}:{path}:ro" for path in readable)]:
        words += ["--volume", volume]
    return (*words, "--workdir", str(work_dir), image, *argv)


def serving_image(tag: str) -> str:
    return f"lookahead-serving:{tag}"


def build_image_argv(tag: str, home: Path) -> tuple[str, ...]:
    folder = home / "docker"
    return (
        "docker", "build", "--build-arg", f"BASE={image_of(tag)}", "--tag", serving_image(tag),
        "--file", str(folder / "Dockerfile"), str(folder),
    )  # fmt: skip


def ensure_image(tag: str, home: Path, run_dir: Path) -> None:
    """Build the image unless docker has it. Raises ServerError with the end of docker's output if that fails."""
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
