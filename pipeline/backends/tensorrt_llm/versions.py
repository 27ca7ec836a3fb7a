"""Tables of compatible versions: requirements of the release line, and versions in the containers."""

from __future__ import annotations

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from pipeline.backends.tensorrt_llm.release_data import (
    FIRST_WITH_LOOKAHEAD_PARAMETERS,
    RELEASE_LINE,
    Container,
    Requirement,
    image_of,
    release,
    release_of,
)
from pipeline.engine.backend import VersionTable


def is_met(requirement: Requirement, version: str) -> bool:
    """Whether a version is in the range. A pre-release counts as its final release."""
    try:
        return SpecifierSet(requirement.range).contains(Version(version).base_version)
    except InvalidVersion:
        return False


def container_status(container: Container) -> str:
    """Whether this pipeline supports a container: "yes" or "no", with the reason."""
    if not container.engine_backend:
        return "no engines"
    if container.trtllm is None:
        return "not confirmed"
    found = release_of(container.trtllm)
    if found == release_of(f"{RELEASE_LINE}.0"):
        return "yes, a release candidate" if "rc" in container.trtllm else "yes"
    if found < FIRST_WITH_LOOKAHEAD_PARAMETERS:
        return "no: no lookahead parameters before 0.19"
    return f"no: not release line {RELEASE_LINE}"


def version_tables() -> tuple[VersionTable, ...]:
    """Tables of the requirements, and of the containers, the newest first; "-" for an unknown version."""
    needs = tuple((need.name, need.range, need.why) for need in release().requirements)
    columns = ("container", "TensorRT-LLM", "TensorRT", "torch", "CUDA", "driver", "served by this pipeline")
    matrix = tuple(
        (tag, *(text or "-" for text in (c.trtllm, c.tensorrt, c.torch, c.cuda, c.driver)), container_status(c))
        for tag, c in reversed(release().containers.items())
    )
    return (
        VersionTable(f"Release line {RELEASE_LINE} needs", ("part", "version", "what for"), needs),
        VersionTable(f"Containers (`{image_of('TAG')}`)", columns, matrix),
    )
