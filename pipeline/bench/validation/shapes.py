"""Random-weight models with the sizes of well-known ones, and the time to read their weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen2Config

from pipeline.config.schema import Device

TINY = "tiny"
# Sizes as in the checkpoints' config.json: hidden, intermediate, layers, heads, key/value heads, vocabulary.
SHAPES: Mapping[str, Callable[[], PretrainedConfig]] = {
    TINY: lambda: _llama(64, 128, 2, 4, 2, 512),
    "llama2-7b": lambda: _llama(4096, 11008, 32, 32, 32, 32000),
    "llama2-13b": lambda: _llama(5120, 13824, 40, 40, 40, 32000),
    "qwen2.5-7b": lambda: Qwen2Config(
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        vocab_size=152064,
    ),
}
LARGE_SHAPES = tuple(name for name in SHAPES if name != TINY)
_BANDWIDTH_BYTES = {"cuda": 1 << 30, "cpu": 1 << 28}


def random_model(config: PretrainedConfig, device: Device, dtype: torch.dtype) -> Any:
    """A model with random weights, created on the device."""
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def bandwidth(device: Device) -> float:
    """Memory bandwidth of a copy in bytes per second, reads plus writes: the best of ten runs."""
    source = torch.empty(_BANDWIDTH_BYTES[device], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = []
    for _ in range(10):
        _wait(device)
        started = time.perf_counter()
        target.copy_(source)
        _wait(device)
        times.append(time.perf_counter() - started)
    return 2 * source.numel() / min(times)


def bytes_read(model: Any) -> int:
    """Bytes of the weights that a pass reads: all except an embedding table that is not also the output layer."""
    total: int = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    embedding = model.get_input_embeddings().weight
    shared = model.get_output_embeddings().weight is embedding
    own: int = embedding.numel() * embedding.element_size()
    return total if shared else total - own


def _llama(hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, vocab: int) -> PretrainedConfig:
    return LlamaConfig(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=vocab,
        max_position_embeddings=4096,
    )


def _wait(device: Device) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
