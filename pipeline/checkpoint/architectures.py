"""Which architectures the torch engine serves, by the class name in config.json, and what is refused and why.

An architecture stands on the list because a test compares it, as a tiny random model, with transformers' own passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.errors import CheckpointError

SUPPORTED_ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "GemmaForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "PhiForCausalLM",
    "Phi3ForCausalLM",
    "GPT2LMHeadModel",
    "GPTNeoXForCausalLM",
    "OPTForCausalLM",
    "Starcoder2ForCausalLM",
    "GraniteForCausalLM",
    "Olmo2ForCausalLM",
    "StableLmForCausalLM",
    "CohereForCausalLM",
    "SmolLM3ForCausalLM",
    "GlmForCausalLM",
    "Glm4ForCausalLM",
)

_OWN_ATTENTION = "transformers computes its attention inside the model, where a tree of drafts cannot be masked"
_REFUSED = {
    "GPTJForCausalLM": _OWN_ATTENTION,
    "BloomForCausalLM": _OWN_ATTENTION,
    "FalconForCausalLM": _OWN_ATTENTION,
}

# Rotary embeddings that change for all positions with the longest one: a drafted token past the limit would change the
# tokens before it, so drafts would not be lossless.
_MOVING_ROPE = ("dynamic", "longrope")

# GGUF files name the architecture in their own words. Mistral is written as "llama" there.
GGUF_ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "MistralForCausalLM"),
    "mistral": ("MistralForCausalLM",),
    "qwen2": ("Qwen2ForCausalLM",),
    "qwen3": ("Qwen3ForCausalLM",),
}


def check_architecture(found: str, expected: str, where: str) -> None:
    """Raises CheckpointError if the checkpoint is of another kind than the model config says, or of one that is not
    served."""
    if found not in SUPPORTED_ARCHITECTURES:
        reason = f": {_REFUSED[found]}" if found in _REFUSED else ""
        raise CheckpointError(
            f"{where} is a {found}, which is not supported{reason}. Supported: {', '.join(SUPPORTED_ARCHITECTURES)}."
        )
    if found != expected:
        raise CheckpointError(
            f"{where} is a {found}; the model config says architecture: {expected}. Correct the config."
        )


def check_rope(config: Mapping[str, Any], where: str) -> None:
    """Raises CheckpointError for rotary embeddings under which drafts would not be lossless."""
    settings = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(settings, Mapping):
        raise CheckpointError(f"{where}: rope_scaling in config.json should be an object; found {settings!r}.")
    kinds = [settings.get("rope_type") or settings.get("type")]
    kinds += [inner.get("rope_type") for inner in settings.values() if isinstance(inner, Mapping)]  # one per layer type
    if moving := [kind for kind in kinds if kind in _MOVING_ROPE]:
        raise CheckpointError(
            f"{where} uses rotary embeddings of type '{moving[0]}', which change for all tokens once a text is long; "
            "drafts would not be lossless. Use a variant of the model with a fixed context length."
        )
