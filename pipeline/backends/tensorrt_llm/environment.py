"""What of TensorRT-LLM is on this machine, and where a build would run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from pipeline.backends.tensorrt_llm import facts
from pipeline.config.schema import ResolvedConfig
from pipeline.engine.provenance import version_of
from pipeline.errors import BuildError

Where = Literal["here", "docker", "nowhere"]

# Names as package metadata has them, dashes as underscores.
PACKAGES = ("tensorrt_llm", "tensorrt", "torch", "nvidia_modelopt", "transformers")
_GPU_QUERY = "name,compute_cap,memory.total,driver_version"


@dataclass(frozen=True, slots=True)
class Gpu:
    """compute_capability: e.g. 90. memory_mib: of the whole device."""

    name: str
    compute_capability: int
    memory_mib: int
    driver: str


@dataclass(frozen=True, slots=True)
class Environment:
    """version: of the installed TensorRT-LLM, if any. loader_switched_off: the variable that spoils conversions is
    set."""

    version: str | None
    docker: str | None
    gpus: tuple[Gpu, ...]
    loader_switched_off: bool

    @property
    def where(self) -> Where:
        return _where(self.version, self.docker)


def detect(environment: Mapping[str, str] = os.environ) -> Environment:
    """Asks the package metadata, PATH and nvidia-smi."""
    return Environment(
        version=installed_version(),
        docker=shutil.which("docker", path=environment.get("PATH")),
        gpus=gpus(environment),
        loader_switched_off=bool(environment.get(facts.LOADER_SWITCH)),
    )


def where_to_run() -> Where:
    """Whether stages run with an installed TensorRT-LLM, in docker, or not on this machine."""
    return _where(installed_version(), shutil.which("docker"))


def _where(version: str | None, docker: str | None) -> Where:
    if version is not None:
        return "here"
    return "docker" if docker is not None else "nowhere"


def installed_version() -> str | None:
    """Version of the installed TensorRT-LLM; importing it would take a minute and a GPU."""
    return package_versions().get("tensorrt_llm")


def package_versions(environment: Mapping[str, str] = os.environ) -> Mapping[str, str]:
    """Versions of TensorRT-LLM and what it rests on: in this interpreter, else in that which the stages of a build run.

    In NVIDIA's container the packages belong to the container's own python3, and this program to a virtual environment;
    `trtllm-build` on PATH tells that they are there. Empty without TensorRT-LLM."""
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
    """Versions that another interpreter has; none if it does not answer."""
    script = (
        "import importlib.metadata as m, json\n"
        f"have = {{d.metadata['Name'].lower().replace('-', '_'): d.version for d in m.distributions()}}\n"
        f"print(json.dumps({{n: have[n] for n in {PACKAGES} if n in have}}))"
    )
    try:
        done = subprocess.run([python, "-c", script], capture_output=True, text=True, timeout=60)
        found: dict[str, str] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {}  # a python3 that cannot run is no home of TensorRT-LLM
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
        return ()  # a broken driver is as good as none; doctor shows that there is no GPU
    return parse_gpus(done.stdout) if done.returncode == 0 else ()


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Lines of nvidia-smi's answer: name, compute capability as 9.0, MiB, driver version."""
    found = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 4 and parts[2].isdigit() and parts[1].replace(".", "").isdigit():
            major, _, minor = parts[1].partition(".")
            found.append(Gpu(parts[0], 10 * int(major) + int(minor or 0), int(parts[2]), parts[3]))
    return tuple(found)


def engine_version(resolved: ResolvedConfig) -> str:
    """TensorRT-LLM that builds and runs the engine: the installed one, else that of the container."""
    container = facts.containers()[resolved.profile.tensorrt_llm.container_tag]
    return installed_version() or container.trtllm or "unknown"


def engine_libraries(resolved: ResolvedConfig) -> dict[str, str]:
    """Versions that an engine depends on."""
    return {"tensorrt_llm": engine_version(resolved)}


def engine_device(resolved: ResolvedConfig) -> str:
    """Kind of GPU that an engine would run on here: the first one that nvidia-smi shows, else the target."""
    found = gpus()
    capability = found[0].compute_capability if found else resolved.profile.tensorrt_llm.compute_capability
    return f"cuda-sm{capability}"


def require_ready(found: Environment, resolved: ResolvedConfig, world_size: int) -> None:
    """Raises BuildError if a build cannot run on this machine, with what to do. Docker's own GPUs are those here."""
    trt = resolved.profile.tensorrt_llm
    if found.where == "nowhere":
        raise BuildError(
            "TensorRT-LLM is not installed here and docker was not found. Work in the container "
            f"{facts.IMAGE.format(tag=trt.container_tag)}, install docker with the NVIDIA container toolkit, or use "
            "--set backend=torch."
        )
    if found.version is not None and not found.version.startswith(f"{facts.RELEASE_LINE}."):
        raise BuildError(
            f"TensorRT-LLM {found.version} is installed; engines with lookahead decoding need release line "
            f"{facts.RELEASE_LINE}. Work in the container {facts.IMAGE.format(tag=trt.container_tag)}."
        )
    if found.where == "here" and found.loader_switched_off:
        raise BuildError(
            f"{facts.LOADER_SWITCH} is set, which switches the checkpoint loader off that conversions rely on. Unset "
            "it."
        )
    if not found.gpus:
        raise BuildError(
            "nvidia-smi shows no GPU; trtllm-build ends with an error of its process pool without one. Build on the "
            "machine that serves."
        )
    if len(found.gpus) < world_size:
        raise BuildError(
            f"{world_size} ranks are asked for and {len(found.gpus)} GPU(s) are here. Lower model.parallelism or "
            "tensorrt_llm.context_parallel."
        )
    if others := sorted({gpu.compute_capability for gpu in found.gpus[:world_size]} - {trt.compute_capability}):
        raise BuildError(
            f"tensorrt_llm.compute_capability is {trt.compute_capability}; the GPU here has {others[0]}, and engines "
            f"run only on the kind of GPU that built them. Use --set tensorrt_llm.compute_capability={others[0]}."
        )
