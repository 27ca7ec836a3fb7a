"""TensorRT-LLM's packages, docker and GPUs of this machine, and whether a build can run here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from pipeline.backends.tensorrt_llm import release_data
from pipeline.config.schema import ResolvedConfig
from pipeline.engine.fingerprint import version_of
from pipeline.errors import BuildError

Where = Literal["here", "docker", "nowhere"]

# Names of package metadata, with underscores for dashes.
PACKAGES = ("tensorrt_llm", "tensorrt", "torch", "nvidia_modelopt", "transformers")
_GPU_QUERY = "name,compute_cap,memory.total,driver_version"
_ASK_SECONDS = 10
# Arguments of docker that print the version of its daemon.
DOCKER_VERSION = ("version", "--format", "{{.Server.Version}}")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU. compute_capability: e.g. 90. memory_mib: total memory in MiB."""

    name: str
    compute_capability: int
    memory_mib: int
    driver: str


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment of builds. version: of the installed TensorRT-LLM; None without it. docker: path of the program;
    None without it."""

    version: str | None
    docker: str | None
    gpus: tuple[Gpu, ...]

    @property
    def where(self) -> Where:
        """Where the stages run: "here" with an installed TensorRT-LLM, else "docker", else "nowhere"."""
        return "here" if self.version is not None else "docker" if self.docker is not None else "nowhere"


def detect(environment: Mapping[str, str] = os.environ) -> Environment:
    """Query the package metadata, PATH and nvidia-smi."""
    return Environment(
        version=package_versions(environment).get("tensorrt_llm"),
        docker=shutil.which("docker", path=environment.get("PATH")),
        gpus=gpus(environment),
    )


def package_versions(environment: Mapping[str, str] = os.environ) -> Mapping[str, str]:
    """Versions of TensorRT-LLM and of its dependencies by package name; empty without TensorRT-LLM. Does not import it,
    which takes a minute and a GPU.

    Searches this interpreter, then python3. In NVIDIA's container this program runs in a virtual environment, and the
    packages belong to the container's python3 if `trtllm-build` is on PATH.
    """
    here = {name: version for name in PACKAGES if (version := version_of(name)) is not None}
    if "tensorrt_llm" in here:
        return here
    search = environment.get("PATH")
    python = shutil.which("python3", path=search)
    if python is None or shutil.which("trtllm-build", path=search) is None:
        return {}
    return _versions_in(python)


@cache
def _versions_in(python: str) -> Mapping[str, str]:
    """Versions in another interpreter; empty if it cannot be run."""
    script = (
        "import importlib.metadata as m, json\n"
        "found = {}\n"
        f"for name in {PACKAGES}:\n"
        "    try:\n"
        "        found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError:\n"
        "        pass\n"
        "print(json.dumps(found))"
    )
    try:
        done = subprocess.run([python, "-c", script], capture_output=True, text=True, timeout=60)
        found: dict[str, str] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {}
    return found


def gpus(environment: Mapping[str, str] = os.environ) -> tuple[Gpu, ...]:
    """The GPUs that nvidia-smi shows; none without it."""
    program = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if program is None:
        return ()
    command = [program, f"--query-gpu={_GPU_QUERY}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ()  # a broken driver counts as none; doctor reports that there is no GPU
    return parse_gpus(done.stdout) if done.returncode == 0 else ()


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Parse nvidia-smi's output: a line per GPU with name, compute capability (9.0), MiB and driver version."""
    found = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 4 and parts[2].isdigit() and parts[1].replace(".", "").isdigit():
            major, _, minor = parts[1].partition(".")
            found.append(Gpu(parts[0], 10 * int(major) + int(minor or 0), int(parts[2]), parts[3]))
    return tuple(found)


def program_answer(command: Sequence[str]) -> str | None:
    """First line of a program's output; None if it fails, prints nothing, or takes long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0] if done.returncode == 0 and lines else None


def engine_version(resolved: ResolvedConfig) -> str:
    """Version of TensorRT-LLM that builds and runs the engine: the installed one, else that of the container."""
    container = release_data.release().containers[resolved.profile.tensorrt_llm.container_tag]
    return package_versions().get("tensorrt_llm", container.trtllm)


def engine_device(resolved: ResolvedConfig) -> str:
    """Name of the GPU that an engine would run on: the first one that nvidia-smi shows, else the target."""
    found = gpus()
    capability = found[0].compute_capability if found else resolved.profile.tensorrt_llm.compute_capability
    return f"cuda-sm{capability}"


def require_ready(found: Environment, resolved: ResolvedConfig, world_size: int) -> None:
    """Raise BuildError with the remedy if a build cannot run on this machine. Docker uses the same GPUs."""
    trt, release = resolved.profile.tensorrt_llm, release_data.RELEASE_LINE
    image, capability = release_data.image_of(trt.container_tag), trt.compute_capability
    others = sorted({gpu.compute_capability for gpu in found.gpus[:world_size]} - {capability})
    if found.where == "nowhere":
        text = (
            f"TensorRT-LLM is not installed here and docker was not found. Use the container {image}, install "
            "docker with the NVIDIA container toolkit, or use --set backend=torch."
        )
    elif found.version is not None and not found.version.startswith(f"{release}."):
        text = (
            f"TensorRT-LLM {found.version} is installed; engines with lookahead decoding need release line {release}. "
            f"Use the container {image}."
        )
    elif not found.gpus:
        text = "nvidia-smi shows no GPU; trtllm-build fails without one. Build on the machine that serves."
    elif len(found.gpus) < world_size:
        text = (
            f"{world_size} ranks need a GPU each, and nvidia-smi shows {len(found.gpus)}. Lower model.parallelism or "
            "tensorrt_llm.context_parallel."
        )
    elif others:
        text = (
            f"tensorrt_llm.compute_capability is {capability}; the GPU here has {others[0]}, and engines run only on "
            f"the kind of GPU that built them. Use --set tensorrt_llm.compute_capability={others[0]}."
        )
    elif found.where == "docker" and program_answer([str(found.docker), *DOCKER_VERSION]) is None:
        text = f"{found.docker} is here, and its daemon does not answer. Start it, or join its group."
    else:
        return
    raise BuildError(text)


def validation_settings() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Overrides for the first GPU, and further overrides for the first profile. Raises BuildError if this machine has
    no GPU, or neither TensorRT-LLM nor docker."""
    found = detect()
    if not found.gpus:
        raise BuildError(
            "nvidia-smi shows no GPU, and the TensorRT-LLM backend needs one; run this on the GPU machine, or try the "
            "same stages on the CPU with --backend torch."
        )
    if found.where == "nowhere":
        raise BuildError(
            "Neither TensorRT-LLM nor docker was found; use NVIDIA's container, or install docker with the NVIDIA "
            "container toolkit (docs/how-to/validate-on-gpu.md)."
        )
    gpu = found.gpus[0]
    memory = f"tensorrt_llm.gpu_memory_gib={gpu.memory_mib / 1024:.0f}"
    # Plain decoding, lookahead and trie on one server, so that they can be compared.
    modes = "both" if gpu.compute_capability < release_data.UNTESTED_GPUS else "trie"
    of_gpu = (f"tensorrt_llm.compute_capability={gpu.compute_capability}", memory)
    return of_gpu, (f"tensorrt_llm.speculation={modes}",)
