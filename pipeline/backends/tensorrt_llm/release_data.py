"""Data about TensorRT-LLM's release line 1.2: options, architectures, versions. Source: `release_data.json`."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any, Literal

from pipeline.config.schema import Frozen

RELEASE_LINE = "1.2"
# The first release whose Triton backend reads W, N and G.
FIRST_WITH_LOOKAHEAD_PARAMETERS = (0, 19)
# With one of these words anywhere in a checkpoint's path, the Llama loader expects other weight names.
_MISLEADING_WORDS = ("llava", "vila", "exaone")
# Environment variable that disables the loader that all conversions here need.
LOADER_SWITCH = "TRTLLM_DISABLE_UNIFIED_CONVERTER"
# NVIDIA's lookahead tests are skipped on GPUs from this compute capability on.
UNTESTED_GPUS = 100

Trait = Literal["sliding_window", "no_xqa_kernel", "moe"]


class Flag(Frozen):
    """An option of trtllm-build. type: str, int or store_true. field: field of PluginConfig; None for other options."""

    type: str
    default: Any
    choices: tuple[str, ...] = ()
    field: str | None = None


class Parameter(Frozen):
    """A parameter of the served model. type: int, uint, float, bool, string, csv int or tree text."""

    type: str
    default: Any
    values: tuple[str, ...] = ()


class Container(Frozen):
    """Versions in a Triton container; None if no source confirms one. trtllm: TensorRT-LLM. engine_backend: whether it
    can build and serve engines."""

    trtllm: str | None
    tensorrt: str | None
    torch: str | None
    cuda: str | None
    driver: str | None
    engine_backend: bool


class Requirement(Frozen):
    """A required range of versions. part: name of the program in the versions of a machine. below: excluded."""

    part: str
    name: str
    at_least: str
    below: str | None
    why: str

    @property
    def range(self) -> str:
        return f"{self.at_least} or newer" if self.below is None else f"{self.at_least} up to below {self.below}"


class ReleaseData(Frozen, extra="ignore"):
    """Content of `release_data.json`. build_flags: options of trtllm-build by name without dashes. parameters: of the
    C++ backend's `tensorrt_llm` model. settable_...: those that a profile may set. ..._set_elsewhere: those that the
    pipeline or another setting sets, with that setting. model_map: TensorRT-LLM's class by architecture, of those that
    its classes convert and the torch engine computes too. model_traits: differences of an architecture from a plain
    decoder. lookahead_tested_on: compute capabilities of NVIDIA's tests. requirements: of the release line, for the
    machine that builds and serves. containers: by tag, the oldest first."""

    build_flags: dict[str, Flag]
    flags_set_elsewhere: dict[str, str]
    settable_flags: tuple[str, ...]
    parameters: dict[str, Parameter]
    parameters_set_elsewhere: dict[str, str]
    settable_parameters: tuple[str, ...]
    speculative_decoding_modes: dict[str, int]
    model_map: dict[str, str]
    model_traits: dict[str, frozenset[Trait]]
    compute_capabilities: tuple[int, ...]
    lookahead_tested_on: tuple[int, ...]
    requirements: tuple[Requirement, ...]
    containers: dict[str, Container]


@cache
def release() -> ReleaseData:
    text = resources.files(__package__).joinpath("release_data.json").read_text(encoding="utf-8")
    return ReleaseData.model_validate_json(text)


def image_of(tag: str) -> str:
    return f"nvcr.io/nvidia/tritonserver:{tag}-trtllm-python-py3"


def release_of(version: str) -> tuple[int, int]:
    """First two numbers of a version such as "1.2.0rc8"."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def misleading_words(architecture: str, path: str) -> tuple[str, ...]:
    """Words in a path by which the Llama loader mistakes the checkpoint for another kind of model."""
    if release().model_map.get(architecture) != "LLaMAForCausalLM":
        return ()
    return tuple(word for word in _MISLEADING_WORDS if word in path.lower())
