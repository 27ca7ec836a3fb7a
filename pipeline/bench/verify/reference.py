"""Agreement of an engine's outputs with transformers and the checkpoint's own weights.

All other comparisons are between outputs of one engine, which also agree if its weights are wrong. Here transformers
computes one pass over prompt and output. An output token counts as right if its logit is at most `tolerance` below the
best one, so one early near-tie does not spoil the tokens after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from pipeline.checkpoint.convert import load_weights
from pipeline.checkpoint.fetch import fetch
from pipeline.checkpoint.model_config import read_config
from pipeline.config.folders import Folders
from pipeline.config.schema import ResolvedConfig
from pipeline.decoding.tree import IntArray

# Least share of right tokens. Quantized weights lose some; wrong weights leave next to none.
LEAST_AGREEMENT = 0.75


def load_reference(resolved: ResolvedConfig, folders: Folders) -> Any:
    """The model's checkpoint in transformers, in the resolved dtype, on a GPU with enough free memory or the CPU."""
    architecture = resolved.model.architecture
    checkpoint = fetch(resolved.model, folders.cache)
    config = read_config(checkpoint.folder, architecture, checkpoint.gguf_file)
    model: Any = load_weights(checkpoint, config, resolved.dtype)
    return model.to(_device_for(model)).eval()


def _device_for(model: Any) -> str:
    """The GPU if the model fits into its free memory, else the CPU: a running server may hold most of the GPU."""
    free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0
    return "cuda" if free > 1.2 * sum(weight.nbytes for weight in model.parameters()) else "cpu"


@torch.inference_mode()
def agreement(model: Any, outputs: Iterable[tuple[IntArray, Sequence[int]]], tolerance: float = 0.0) -> float:
    """Share of the output tokens that the model would choose greedily too. outputs: prompt and output tokens.
    tolerance: largest gap of a token's logit to the highest one that counts as equal."""
    num_right = num_tokens = 0
    for prompt_ids, output_ids in outputs:
        context = torch.as_tensor([*prompt_ids.tolist(), *output_ids], device=model.device)
        logits = model(context[None, :-1], use_cache=False).logits[0, len(prompt_ids) - 1 :].float()
        chosen = logits.gather(1, context[len(prompt_ids) :, None])[:, 0]
        num_right += int((chosen >= logits.amax(1) - tolerance).sum())
        num_tokens += len(output_ids)
    return num_right / max(num_tokens, 1)


def disagreement_sentence(share: float) -> str:
    """The message of a failed comparison. share: see `agreement`."""
    return (
        f"Only {share:.0%} of the engine's greedy tokens are the most probable ones of transformers with the "
        "checkpoint's weights. The engine has other weights, or computes another model."
    )
