"""Findings of `lookahead doctor` about the TensorRT-LLM backend: programs, packages and their versions."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence

from pipeline.backends.tensorrt_llm import release_data
from pipeline.backends.tensorrt_llm.environment import DOCKER_VERSION, Gpu, gpus, package_versions, program_answer
from pipeline.engine.backend import Finding


def examine_tensorrt_llm() -> Iterator[Finding]:
    """Yield the findings. A missing program is a note, not an error, because the torch engine needs none of them."""
    found_gpus = gpus()
    found = dict(package_versions())
    if found_gpus:
        found["driver"] = found_gpus[0].driver
    for requirement in release_data.release().requirements:
        if requirement.part == "driver":
            yield _version(requirement, found, "CUDA driver", "nvidia-smi shows none")
        elif requirement.part in found or requirement.part == "tensorrt_llm":
            missing = "not installed; backend tensorrt_llm is built in NVIDIA's container"
            yield _version(requirement, found, requirement.name, missing)
    yield _gpus(found_gpus)
    purpose = "several GPUs are served with it; NVIDIA's container has it"
    yield _program("mpirun", ("--version",), f"none; {purpose}")
    yield _program("docker", DOCKER_VERSION, "none", "its daemon does not answer", "Start it, or join its group.")


def _version(requirement: release_data.Requirement, found: Mapping[str, str], name: str, missing: str) -> Finding:
    version = found.get(requirement.part)
    if version is None:
        return Finding(name, "note", missing)
    if release_data.is_met(requirement, version):
        return Finding(name, "ok", version)
    needs = f"Release line {release_data.RELEASE_LINE} needs {requirement.range} ({requirement.why})"
    return Finding(name, "note", version, f"{needs}; see `lookahead dev versions`.")


def _gpus(found: tuple[Gpu, ...]) -> Finding:
    if not found:
        return Finding("NVIDIA GPUs", "note", "nvidia-smi shows none")
    text = "; ".join(f"{gpu.name}, {gpu.compute_capability / 10:.1f}, {gpu.memory_mib / 1024:.0f} GiB" for gpu in found)
    known = release_data.release().compute_capabilities
    if all(gpu.compute_capability in known for gpu in found):
        return Finding("NVIDIA GPUs", "ok", text)
    capabilities = ", ".join(f"{capability / 10:.1f}" for capability in known)
    remedy = f"TensorRT-LLM {release_data.RELEASE_LINE} has compute capabilities {capabilities}."
    return Finding("NVIDIA GPUs", "note", text, remedy)


def _program(name: str, arguments: Sequence[str], missing: str, silent: str = "", remedy: str = "") -> Finding:
    """Finding about a program. arguments: to print its version. missing: text if it is not installed. silent, remedy:
    text and remedy if it prints no version; empty if that is fine."""
    path = shutil.which(name)
    if path is None:
        return Finding(name, "note", missing)
    answer = program_answer([path, *arguments])
    if answer is None and silent:
        return Finding(name, "note", f"{path}; {silent}", remedy)
    return Finding(name, "ok", path if answer is None else f"{path}, {answer}")
