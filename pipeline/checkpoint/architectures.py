"""Which architectures the torch engine serves, by the class name in a checkpoint's config.json."""

from __future__ import annotations

from pipeline.errors import CheckpointError

SUPPORTED_ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)

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
        raise CheckpointError(
            f"{where} is a {found}, which is not supported. Supported: {', '.join(SUPPORTED_ARCHITECTURES)}."
        )
    if found != expected:
        raise CheckpointError(
            f"{where} is a {found}; the model config says architecture: {expected}. Correct the config."
        )
