"""What `lookahead doctor` says of the TensorRT-LLM backend: which parts are there, in which versions."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping

from pipeline.backends.tensorrt_llm import facts
from pipeline.backends.tensorrt_llm.environment import Gpu, gpus, package_versions
from pipeline.backends.tensorrt_llm.versions import requirements, unmet
from pipeline.engine.finding import Finding

_ASK_SECONDS = 10


def examine_tensorrt_llm() -> Iterator[Finding]:
    """Findings; nothing here is needed by the torch engine, so whatever is missing is a note."""
    found_gpus = gpus()
    found = dict(package_versions())
    if found_gpus:
        found["driver"] = found_gpus[0].driver
    for requirement in requirements():
        if requirement.part == "driver":
            yield _driver(found)
        elif requirement.part in found:
            yield _package(requirement.part, requirement.name, found)
        elif requirement.part == "tensorrt_llm":
            yield Finding(
                requirement.name, "note", "not installed; backend tensorrt_llm is built in NVIDIA's container"
            )
    yield _gpus(found_gpus)
    yield _program("mpirun", ["mpirun", "--version"], "several GPUs are served with it; NVIDIA's container has it")
    yield _docker()


def _package(part: str, name: str, found: Mapping[str, str]) -> Finding:
    wrong = unmet(found).get(part)
    if wrong is None:
        return Finding(name, "ok", found[part])
    remedy = f"Release line {facts.RELEASE_LINE} needs {wrong.range} ({wrong.why}); see `lookahead dev versions`."
    return Finding(name, "note", found[part], remedy)


def _driver(found: Mapping[str, str]) -> Finding:
    if "driver" not in found:
        return Finding("CUDA driver", "note", "nvidia-smi shows none")
    _, state, version, remedy = _package("driver", "CUDA driver", found)
    return Finding("CUDA driver", state, version, remedy)


def _gpus(found: tuple[Gpu, ...]) -> Finding:
    if not found:
        return Finding("NVIDIA GPUs", "note", "nvidia-smi shows none")
    text = "; ".join(f"{gpu.name}, {gpu.compute_capability / 10:.1f}, {gpu.memory_mib / 1024:.0f} GiB" for gpu in found)
    unknown = [gpu for gpu in found if gpu.compute_capability not in facts.compute_capabilities()]
    if not unknown:
        return Finding("NVIDIA GPUs", "ok", text)
    known = ", ".join(f"{capability / 10:.1f}" for capability in facts.compute_capabilities())
    return Finding("NVIDIA GPUs", "note", text, f"TensorRT-LLM {facts.RELEASE_LINE} has compute capabilities {known}.")


def _docker() -> Finding:
    path = shutil.which("docker")
    if path is None:
        return Finding("docker", "note", "none")
    answer = _output([path, "version", "--format", "{{.Server.Version}}"])
    if answer is None:
        return Finding("docker", "note", f"{path}; its daemon does not answer", "Start it, or join its group.")
    return Finding("docker", "ok", f"{path}, {answer}")


def _program(name: str, command: list[str], purpose: str) -> Finding:
    path = shutil.which(name)
    if path is None:
        return Finding(name, "note", f"none; {purpose}")
    answer = _output(command)
    return Finding(name, "ok", path if answer is None else f"{path}, {answer}")


def _output(command: list[str]) -> str | None:
    """First line of what a program says; None if it fails or is silent."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0] if done.returncode == 0 and lines else None
