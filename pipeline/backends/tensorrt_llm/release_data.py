"""Data about TensorRT-LLM's release line 1.2: options, architectures, containers. Source: `release_data.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

RELEASE_LINE = "1.2"
# The first release whose Triton backend reads W, N and G.
FIRST_WITH_LOOKAHEAD_PARAMETERS = (0, 19)
# What one of these words anywhere in a checkpoint's path does: the Llama loader takes other weight names.
_SNIFFED_PATH_WORDS = ("llava", "vila", "exaone")
# Words that must stand in it: by them the Llama loader finds EXAONE's weights, and ChatGLM's converter the version.
NEEDED_PATH_WORDS = {
    "ExaoneForCausalLM": "exaone",
    "GLMModel": "glm",
    "ChatGLMModel": "glm",
    "ChatGLMForCausalLM": "glm",
    "ChatGLMForConditionalGeneration": "glm",
}
# Set, it switches the loader off that every conversion here relies on.
LOADER_SWITCH = "TRTLLM_DISABLE_UNIFIED_CONVERTER"
# The converter takes a Baichuan model with this many heads for the 7B with RoPE, and all others for the 13B with ALiBi.
BAICHUAN_ROPE_HEADS = 32

Trait = Literal[
    "alibi",
    "maybe_alibi",
    "recurrent",
    "own_speculation",
    "script_only",
    "remote_code",
    "multimodal",
    "no_text",
    "sliding_window",
    "no_xqa_kernel",
    "moe",
]


@dataclass(frozen=True, slots=True)
class Flag:
    """An option of trtllm-build. type: str, int or store_true. field: of PluginConfig, for the plugin group."""

    name: str
    type: str
    default: Any
    choices: tuple[str, ...]
    field: str | None
    group: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the served model. type: int, uint, float, bool, string, csv int or tree text."""

    name: str
    type: str
    default: Any
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Container:
    """A Triton container. trtllm: the version of TensorRT-LLM in it; None where no source confirms one."""

    tag: str
    trtllm: str | None
    tensorrt: str | None
    torch: str | None
    cuda: str | None
    driver: str | None
    engine_backend: bool

    @property
    def release(self) -> tuple[int, int] | None:
        return release_of(self.trtllm) if self.trtllm else None


def image_of(tag: str) -> str:
    return f"nvcr.io/nvidia/tritonserver:{tag}-trtllm-python-py3"


def release_of(version: str) -> tuple[int, int]:
    """First two numbers of a version such as "1.2.0rc8"."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


@cache
def build_flags() -> Mapping[str, Flag]:
    """All options of trtllm-build, by name without dashes."""
    return {
        name: Flag(
            name, entry["type"], entry["default"], tuple(entry.get("choices", ())), entry.get("field"), entry["group"]
        )
        for name, entry in data()["build_flags"].items()
    }


@cache
def parameters() -> Mapping[str, Parameter]:
    """All parameters of the C++ backend's `tensorrt_llm` model."""
    return {
        name: Parameter(name, entry["type"], entry["default"], tuple(entry.get("values", ())))
        for name, entry in data()["parameters"].items()
    }


@cache
def containers() -> Mapping[str, Container]:
    """The version matrix, by container tag."""
    return {entry["tag"]: Container(**entry) for entry in data()["containers"]}


def mode_number(name: str) -> int:
    """The number that an engine's config.json holds for a speculative mode, e.g. LOOKAHEAD_DECODING -> 8."""
    return int(data()["speculative_decoding_modes"][name])


def model_class(architecture: str) -> str | None:
    """TensorRT-LLM's class for an architecture; None if the engine backend has none."""
    found: str | None = data()["model_map"].get(architecture)
    return found


def architectures() -> tuple[str, ...]:
    return tuple(data()["model_map"])


def traits(architecture: str) -> frozenset[Trait]:
    """Differences of an architecture from a plain decoder with rotary positions."""
    return frozenset(data()["model_traits"].get(architecture, ()))


def misleading_words(architecture: str, path: str) -> tuple[str, ...]:
    """Words in a path by which the Llama loader takes a checkpoint for another kind of model."""
    if model_class(architecture) != "LLaMAForCausalLM":
        return ()
    right = NEEDED_PATH_WORDS.get(architecture)
    return tuple(word for word in _SNIFFED_PATH_WORDS if word in path.lower() and word != right)


def only_without_engines() -> tuple[str, ...]:
    """Well-known architectures that only the later PyTorch path has."""
    return tuple(data()["not_in_engine_backend"])


def family(architecture: str) -> str | None:
    """Example folder whose script converts an architecture; None if there is none."""
    found: str | None = data()["families"].get(model_class(architecture) or "")
    return found


def script_folder(family: str) -> str:
    """Folder of a family's convert_checkpoint.py below the examples."""
    return str(data()["script_dirs"][family])


def script_flags(family: str) -> Mapping[str, Mapping[str, Any]]:
    """Options of a family's convert_checkpoint.py by name without dashes; empty where no source lists them."""
    flags: Mapping[str, Mapping[str, Any]] = data()["convert_flags"].get(family, {})
    return flags


def compute_capabilities() -> tuple[int, ...]:
    return tuple(data()["compute_capabilities"])


def lookahead_tested_on() -> tuple[int, ...]:
    """GPU generations on which NVIDIA's own tests run lookahead decoding."""
    return tuple(data()["lookahead_tested_on"])


@cache
def data() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("release_data.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
