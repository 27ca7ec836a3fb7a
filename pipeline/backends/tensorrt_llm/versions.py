"""Which versions go together: the requirements of the release line against what a machine has, and the matrix of
containers as a table for people."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from packaging.version import InvalidVersion, Version

from pipeline.backends.tensorrt_llm import release_data
from pipeline.engine.finding import VersionTable


@dataclass(frozen=True, slots=True)
class Requirement:
    """A range of versions. part: key among the versions of a machine."""

    part: str
    name: str
    at_least: str
    below: str | None
    why: str

    @property
    def range(self) -> str:
        return f"{self.at_least} or newer" if self.below is None else f"{self.at_least} up to below {self.below}"

    def is_met_by(self, version: str) -> bool:
        """Whether a version is in the range; a pre-release counts as the release it leads to."""
        try:
            found = Version(Version(version).base_version)
        except InvalidVersion:
            return False
        return found >= Version(self.at_least) and (self.below is None or found < Version(self.below))


@cache
def requirements() -> tuple[Requirement, ...]:
    return tuple(Requirement(**entry) for entry in _data()["requirements"])


def container_status(container: release_data.Container) -> str:
    """Whether this pipeline builds for a container, and why not."""
    if not container.engine_backend:
        return "no engines"
    if container.trtllm is None or container.release is None:
        return "not confirmed"
    if container.release == release_data.release_of(release_data.RELEASE_LINE + ".0"):
        return "yes, a release candidate" if "rc" in container.trtllm else "yes"
    if container.release < release_data.FIRST_WITH_LOOKAHEAD_PARAMETERS:
        return "no: no lookahead parameters before 0.19"
    return f"no: not release line {release_data.RELEASE_LINE}"


def matrix_rows() -> list[tuple[str, ...]]:
    """One row per container, newest first; "-" where no source states a version."""
    return [
        (
            container.tag,
            *(
                text or "-"
                for text in (
                    container.trtllm, container.tensorrt, container.torch, container.cuda, container.driver
                )
            ),
            container_status(container),
        )
        for container in reversed(list(release_data.containers().values()))
    ]  # fmt: skip


def version_tables() -> tuple[VersionTable, ...]:
    """Requirements of the release line, and the matrix of containers."""
    needs = tuple((need.name, need.range, need.why) for need in requirements())
    columns = ("container", "TensorRT-LLM", "TensorRT", "torch", "CUDA", "driver", "served by this pipeline")
    return (
        VersionTable(f"Release line {release_data.RELEASE_LINE} needs", ("part", "version", "what for"), needs),
        VersionTable(f"Containers (`{release_data.image_of('TAG')}`)", columns, tuple(matrix_rows())),
    )


@cache
def _data() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("versions.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data
