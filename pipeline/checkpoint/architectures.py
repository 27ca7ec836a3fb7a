"""Architectures that the torch engine supports, by the class name in config.json, and reasons for unsupported ones.

For each supported architecture a test compares a tiny random model with transformers' own passes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Architecture:
    """A supported architecture. unquantized: reason why its weights cannot be int8, None if they can. lean: whether the
    lean CPU pass supports it."""

    name: str
    family: str
    attention: str = "full"
    unquantized: str | None = None
    lean: bool = False


_EXPERTS = "keeps the weights of its experts outside linear layers"

ARCHITECTURES = (
    Architecture("LlamaForCausalLM", "Llama, CodeLlama, SmolLM2, Yi, Vicuna", lean=True),
    Architecture("MistralForCausalLM", "Mistral", "sliding window", lean=True),
    Architecture("MixtralForCausalLM", "Mixtral", "sliding window; mixture of experts", _EXPERTS),
    Architecture("Qwen2ForCausalLM", "Qwen2, Qwen2.5", "full and sliding window by layer", lean=True),
    Architecture(
        "Qwen2MoeForCausalLM",
        "Qwen1.5-MoE, Qwen2-MoE",
        "full and sliding window by layer; mixture of experts",
        _EXPERTS,
    ),
    Architecture("Qwen3ForCausalLM", "Qwen3", "full and sliding window by layer", lean=True),
    Architecture("Qwen3MoeForCausalLM", "Qwen3-MoE", "sliding window; mixture of experts", _EXPERTS),
    Architecture("GemmaForCausalLM", "Gemma"),
    Architecture("Gemma2ForCausalLM", "Gemma 2", "full and sliding window by layer, soft-capped"),
    Architecture("Gemma3ForCausalLM", "Gemma 3, text", "full and sliding window by layer"),
    Architecture("PhiForCausalLM", "Phi-1, Phi-2"),
    Architecture("Phi3ForCausalLM", "Phi-3, Phi-4", "sliding window"),
    Architecture(
        "GPT2LMHeadModel", "GPT-2", unquantized="keeps its weights transposed, in layers that are not linear layers"
    ),
    Architecture("GPTJForCausalLM", "GPT-J"),
    Architecture("GPTNeoXForCausalLM", "GPT-NeoX, Pythia"),
    Architecture("OPTForCausalLM", "OPT"),
    Architecture("BloomForCausalLM", "BLOOM", "full, with ALiBi"),
    Architecture("Starcoder2ForCausalLM", "StarCoder2", "sliding window"),
    Architecture("GraniteForCausalLM", "Granite"),
    Architecture("OlmoForCausalLM", "OLMo"),
    Architecture("Olmo2ForCausalLM", "OLMo 2"),
    Architecture("Olmo3ForCausalLM", "OLMo 3", "full and sliding window by layer"),
    Architecture("StableLmForCausalLM", "StableLM"),
    Architecture("CohereForCausalLM", "Command R"),
    Architecture("Cohere2ForCausalLM", "Command R7B", "full and sliding window by layer"),
    Architecture("SmolLM3ForCausalLM", "SmolLM3", "full and sliding window by layer"),
    Architecture("NemotronForCausalLM", "Nemotron"),
    Architecture("ArceeForCausalLM", "Arcee"),
    Architecture("SeedOssForCausalLM", "Seed-OSS"),
    Architecture("GlmForCausalLM", "GLM-4 (2024)"),
    Architecture("Glm4ForCausalLM", "GLM-4 (2025)"),
)
SUPPORTED_ARCHITECTURES = tuple(architecture.name for architecture in ARCHITECTURES)
LEAN_ARCHITECTURES = tuple(architecture.name for architecture in ARCHITECTURES if architecture.lean)
UNQUANTIZED = {known.name: known.unquantized for known in ARCHITECTURES if known.unquantized is not None}

_OWN_ATTENTION = "transformers computes its attention inside the model, where a tree of drafts cannot be masked"
_NOT_NATIVE = "transformers has no modelling code of its own for it, and a checkpoint's own code is not run"
REFUSED = {
    "FalconForCausalLM": _OWN_ATTENTION,
    "MptForCausalLM": _OWN_ATTENTION,
    "CodeGenForCausalLM": _OWN_ATTENTION,
    "GptOssForCausalLM": "its attention has sinks, which take part in the softmax and are not computed here",
    "InternLM2ForCausalLM": _NOT_NATIVE,
    "InternLM3ForCausalLM": _NOT_NATIVE,
    "BaichuanForCausalLM": _NOT_NATIVE,
    "BaiChuanForCausalLM": _NOT_NATIVE,
    "ChatGLMModel": _NOT_NATIVE,
}

# Types of rotary embeddings that depend on the text's length at all positions: a draft token beyond the limit would
# change the tokens before it, so drafts would not be lossless. "su" is an older name of longrope.
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope", "su")


def check_architecture(name: str, where: str) -> None:
    """Raise CheckpointError for an architecture that the torch engine does not support."""
    if name not in SUPPORTED_ARCHITECTURES:
        reason = f": {REFUSED[name]}" if name in REFUSED else ""
        raise CheckpointError(
            f"{where} is a {name}, which is not supported{reason}. Supported: {', '.join(SUPPORTED_ARCHITECTURES)}."
        )


def check_rope(config: Mapping[str, Any], where: str) -> None:
    """Raise CheckpointError for rotary embeddings that are invalid, or under which drafts would not be lossless.
    config: config.json, or its settings as transformers reads them, which have other names."""
    kinds: list[object] = []
    numbers = [("rope_theta", config.get("rope_theta"))]
    for key in ("rope_parameters", "rope_scaling"):
        settings = config.get(key) or {}
        if not isinstance(settings, Mapping):
            raise CheckpointError(f"{where}: {key} in config.json: found {settings!r}; should be an object.")
        for part in (settings, *(inner for inner in settings.values() if isinstance(inner, Mapping))):  # by layer type
            kinds += [part.get("rope_type"), part.get("type")]
            numbers += [(name, part.get(name)) for name in ("rope_theta", "factor", "original_max_position_embeddings")]
    for name, number in numbers:
        if number is not None and not (isinstance(number, int | float) and 0 < number < math.inf):
            raise CheckpointError(f"{where}: {name} in config.json: found {number!r}; should be a number above 0.")
    refuse_length_dependent_rope(kinds, where)


def refuse_length_dependent_rope(kinds: Iterable[object], where: str) -> None:
    """Raise CheckpointError if one of these types of rotary embeddings is in `LENGTH_DEPENDENT_ROPE`."""
    if moving := [kind for kind in kinds if kind in LENGTH_DEPENDENT_ROPE]:
        raise CheckpointError(
            f"{where} uses rotary embeddings of type '{moving[0]}', which change for all tokens once a text is long; "
            "drafts would not be lossless. Use a variant of the model with a fixed context length."
        )
