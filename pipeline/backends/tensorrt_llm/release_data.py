"""Data about TensorRT-LLM's release line 1.2: options, architectures, versions. Source: `release_data.json`."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any, Literal

from pipeline.config.schema import Frozen

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
# NVIDIA's lookahead tests are skipped on GPUs from this compute capability on.
UNTESTED_GPUS = 100

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


class Flag(Frozen):
    """An option of trtllm-build. type: str, int or store_true. field: of PluginConfig, for the plugin group."""

    type: str
    default: Any
    group: str
    choices: tuple[str, ...] = ()
    field: str | None = None
    nargs: str | None = None


class Parameter(Frozen):
    """A parameter of the served model. type: int, uint, float, bool, string, csv int or tree text."""

    type: str
    default: Any
    values: tuple[str, ...] = ()


class Container(Frozen):
    """A Triton container. trtllm: the version of TensorRT-LLM in it; None where no source confirms one."""

    trtllm: str | None
    tensorrt: str | None
    torch: str | None
    cuda: str | None
    driver: str | None
    engine_backend: bool


class Requirement(Frozen):
    """A range of versions. part: key among the versions of a machine."""

    part: str
    name: str
    at_least: str
    below: str | None
    why: str

    @property
    def range(self) -> str:
        return f"{self.at_least} or newer" if self.below is None else f"{self.at_least} up to below {self.below}"


class ReleaseData(Frozen, extra="ignore"):
    """build_flags: options of trtllm-build, by name without dashes. parameters: of the C++ backend's `tensorrt_llm`
    model. flags_, parameters_: those that the pipeline or another setting sets, and those that are not to be used, with
    the reason. model_map: TensorRT-LLM's class for each architecture that it has engines for. model_traits: differences
    of an architecture from a plain decoder with rotary positions. not_in_engine_backend: well-known architectures that
    only the later PyTorch path has. families: example folder whose script converts a class. convert_flags: options of a
    family's convert_checkpoint.py, where a source lists them. lookahead_tested_on: compute capabilities of NVIDIA's own
    tests. requirements: of the release line, for the machine that builds and serves. containers: by tag, the oldest
    first."""

    build_flags: dict[str, Flag]
    flags_set_elsewhere: dict[str, str]
    flags_of_no_use: dict[str, str]
    parameters: dict[str, Parameter]
    parameters_set_elsewhere: dict[str, str]
    parameters_of_no_use: dict[str, str]
    speculative_decoding_modes: dict[str, int]
    model_map: dict[str, str]
    model_traits: dict[str, frozenset[Trait]]
    not_in_engine_backend: tuple[str, ...]
    families: dict[str, str]
    script_dirs: dict[str, str]
    script_spellings: dict[str, dict[str, str]]
    script_kind_options: dict[str, str]
    convert_flags: dict[str, dict[str, Any]]
    compute_capabilities: tuple[int, ...]
    lookahead_tested_on: tuple[int, ...]
    requirements: tuple[Requirement, ...]
    containers: dict[str, Container]

    def traits(self, architecture: str) -> frozenset[Trait]:
        return self.model_traits.get(architecture, frozenset())

    def family(self, architecture: str) -> str | None:
        """Example folder whose script converts an architecture; None if there is none."""
        return self.families.get(self.model_map.get(architecture, ""))


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
    """Words in a path by which the Llama loader takes a checkpoint for another kind of model."""
    if release().model_map.get(architecture) != "LLaMAForCausalLM":
        return ()
    right = NEEDED_PATH_WORDS.get(architecture)
    return tuple(word for word in _SNIFFED_PATH_WORDS if word in path.lower() and word != right)
