"""Data about TensorRT-LLM's release line 1.2: options, architectures, versions. Source: `release_data.json`."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from pipeline.config.schema import Frozen
from pipeline.engine.backend import VersionTable

RELEASE_LINE = "1.2"
# With one of these words anywhere in a checkpoint's path, the Llama loader expects other weight names.
_MISLEADING_WORDS = ("llava", "vila", "exaone")
# Words that the path must contain: the Llama loader recognizes EXAONE by it, and ChatGLM's converter the version.
NEEDED_PATH_WORDS = {
    "ExaoneForCausalLM": "exaone",
    "GLMModel": "glm",
    "ChatGLMModel": "glm",
    "ChatGLMForCausalLM": "glm",
    "ChatGLMForConditionalGeneration": "glm",
}
# Environment variable that disables TensorRT-LLM's unified converter, which all conversions here use. No stage inherits
# it, because it would change the converted weights.
LOADER_SWITCH = "TRTLLM_DISABLE_UNIFIED_CONVERTER"
# Number of heads by which the converter recognizes the 7B Baichuan model with RoPE. It treats others as the 13B with
# ALiBi.
BAICHUAN_ROPE_HEADS = 32
# NVIDIA's lookahead tests are skipped on GPUs from this compute capability on.
UNTESTED_GPUS = 100

Trait = Literal[
    "alibi",
    "maybe_alibi",
    "recurrent",
    "script_only",
    "remote_code",
    "sliding_window",
    "no_xqa_kernel",
    "uneven_layers",
    "moe",
]


class Option(Frozen):
    """A parameter of the served model, or an option of trtllm-build. type: int, uint, float, float 0..1, bool, string,
    csv int or tree text; of trtllm-build: str, int or store_true."""

    type: str
    default: Any
    choices: tuple[str, ...] = ()


class Flag(Option):
    """An option of trtllm-build. group: "plugin" for a field of PluginConfig."""

    group: str
    nargs: str | None = None


class Container(Frozen):
    """Versions in a Triton container. trtllm: TensorRT-LLM."""

    trtllm: str
    tensorrt: str
    torch: str
    cuda: str


class Requirement(Frozen):
    """A required range of versions. part: name of the program in the versions of a machine. range: as pip writes it."""

    part: str
    name: str
    range: str
    why: str


class ReleaseData(Frozen, extra="ignore"):
    """Content of `release_data.json`. build_flags: options of trtllm-build by name without dashes.
    build_config_fields: names in BuildConfig. parameters: of the C++ backend's `tensorrt_llm` model.
    ..._set_elsewhere: those that the pipeline or another setting sets, with that setting. ..._of_no_use: those that
    must not be set, with the reason. model_map: TensorRT-LLM's class by architecture, of text models. model_traits:
    differences of an architecture from a plain decoder with rotary positions. families: folder of the conversion script
    of a class, below examples/models. convert_flags: known options of a family's convert_checkpoint.py.
    lookahead_tested_on: compute capabilities of NVIDIA's tests. requirements: of the release line, for the machine that
    builds and serves. containers: with it, by tag, the oldest first."""

    build_flags: dict[str, Flag]
    build_config_fields: frozenset[str]
    flags_set_elsewhere: dict[str, str]
    flags_of_no_use: dict[str, str]
    parameters: dict[str, Option]
    parameters_set_elsewhere: dict[str, str]
    parameters_of_no_use: dict[str, str]
    speculative_decoding_modes: dict[str, int]
    model_map: dict[str, str]
    model_traits: dict[str, frozenset[Trait]]
    families: dict[str, str]
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
        """Name of the folder with the conversion script of an architecture; None if there is none."""
        return self.families.get(self.model_map.get(architecture, ""), "").rpartition("/")[2] or None


@cache
def release() -> ReleaseData:
    """The data of the release line."""
    text = resources.files(__package__).joinpath("release_data.json").read_text(encoding="utf-8")
    return ReleaseData.model_validate_json(text)


def flag_words(flag: Flag, value: object) -> tuple[str, ...]:
    """Words of an option's value on the command line: several, separated by spaces, if the option takes a list."""
    return tuple(str(value).split()) if flag.nargs else (str(value),)


def image_of(tag: str) -> str:
    """Name of NVIDIA's image with TensorRT-LLM and Triton."""
    return f"nvcr.io/nvidia/tritonserver:{tag}-trtllm-python-py3"


def misleading_words(architecture: str, path: str) -> tuple[str, ...]:
    """Words in a path by which the Llama loader mistakes the checkpoint for another kind of model."""
    if release().model_map.get(architecture) != "LLaMAForCausalLM":
        return ()
    right = NEEDED_PATH_WORDS.get(architecture)
    return tuple(word for word in _MISLEADING_WORDS if word in path.lower() and word != right)


def is_met(requirement: Requirement, version: str) -> bool:
    """Whether a version is in the range. A pre-release counts as its final release."""
    try:
        return SpecifierSet(requirement.range).contains(Version(version).base_version)
    except InvalidVersion:
        return False


def version_tables() -> tuple[VersionTable, ...]:
    """Tables of the requirements, and of the containers, the newest first."""
    needs = tuple((need.name, need.range, need.why) for need in release().requirements)
    columns = ("container", "TensorRT-LLM", "TensorRT", "torch", "CUDA")
    matrix = tuple((tag, c.trtllm, c.tensorrt, c.torch, c.cuda) for tag, c in reversed(release().containers.items()))
    return (
        VersionTable(f"Release line {RELEASE_LINE} needs", ("part", "version", "what for"), needs),
        VersionTable(f"Containers (`{image_of('TAG')}`)", columns, matrix),
    )
