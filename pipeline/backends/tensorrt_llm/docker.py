"""Commands that run a stage or a server in NVIDIA's container, for machines with docker and without TensorRT-LLM.

The image of a server is NVIDIA's with a few more packages (`docker/Dockerfile`), built once per container tag. The
container shares the network and the shared memory of the machine, and mounts our folders under the same paths. So
ports, addresses and leftovers are as those of a server outside a container.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.backends.tensorrt_llm.release_data import image_of
from pipeline.engine.fingerprint import digest_of
from pipeline.errors import ServerError
from pipeline.files import end_of_log

BUILD_LOG = "docker-build.log"
# Login variables. The container has no user with the caller's id, and libraries name their cache folders after the
# user: without these, torch fails with a KeyError.
_LOGIN = {"HOME": "/tmp", "USER": "lookahead", "LOGNAME": "lookahead"}


def docker_argv(
    image: str,
    argv: Sequence[str],
    *,
    name: str,
    writable: Sequence[Path],
    readable: Sequence[Path],
    work_dir: Path,
    environment: Mapping[str, str],
    options: Sequence[str] = (),
) -> tuple[str, ...]:
    """`docker run` with all GPUs, and with the given folders mounted under the same paths. name: of the container.
    options: further ones of docker.

    Sets the limits of shared and locked memory that NVIDIA's images require. New files belong to the caller.
    """
    # --init forwards signals to the command, which ignores most of them as the first process, and reaps its children.
    words = ["docker", "run", "--name", name, "--init", *options, "--rm", "--gpus", "all", "--ipc=host"]
    words += ["--ulimit", "memlock=-1", "--ulimit", "stack=67108864"]
    words += ["--user", f"{os.getuid()}:{os.getgid()}"]
    for variable, value in {**_LOGIN, **environment}.items():
        words += ["--env", f"{variable}={value}"]
    for volume in [*(f"{path}:{path}" for path in writable), *(f"{path}:{path}:ro" for path in readable)]:
        words += ["--volume", volume]
    return (*words, "--workdir", str(work_dir), image, *argv)


def serving_image(tag: str) -> str:
    """Name of the image of a server. tag: of NVIDIA's container."""
    return f"lookahead-serving:{tag}"


def build_image_argv(tag: str, home: Path) -> tuple[str, ...]:
    """Command that builds the image of a server. home: folder of docker/."""
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
            f"The image {image} could not be built (docker build ended with code {done.returncode}). {end_of_log(log)}"
        )


def container_name(owner_id: str) -> str:
    """Name of a container. owner_id: id of a server, or `stage_id`."""
    return f"lookahead-{owner_id}"


def stage_id(folder: Path) -> str:
    """Id of the stage in a folder, in which one build runs at a time."""
    return digest_of(str(folder))[:12]


def remove_argv(owner_id: str) -> tuple[str, ...]:
    """Command that removes the container of a server or a stage, if it exists. owner_id: as for `container_name`."""
    return ("docker", "rm", "--force", container_name(owner_id))
