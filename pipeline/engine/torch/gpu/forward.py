"""One pass of a dense decoder: four matrix products per layer, and fused kernels between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel

from pipeline.engine.torch.attention import SlotCache
from pipeline.engine.torch.fusion import concatenated
from pipeline.engine.torch.gpu.attention import attend
from pipeline.engine.torch.gpu.kernels import add_and_norm, gate, rotate_and_store
from pipeline.engine.torch.gpu.pass_table import TOKEN
from pipeline.engine.torch.lean.plan import LeanPlan


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of a layer. head_norms: of queries and keys. window: sliding window in positions, 0 for none."""

    input_norm: torch.Tensor
    qkv: nn.Linear
    head_norms: tuple[torch.Tensor, torch.Tensor] | None
    output: nn.Linear
    post_norm: torch.Tensor
    gate_up: nn.Linear
    down: nn.Linear
    window: int


@dataclass(frozen=True, slots=True)
class Decoder:
    """Weights of a model. rotation: [2, position, head_dim / 2] cosines and sines, float32."""

    embedding: torch.Tensor
    layers: Sequence[Layer]
    final_norm: torch.Tensor
    head: torch.Tensor
    rotation: torch.Tensor
    epsilon: float


@torch.inference_mode()
def decoder_of(model: PreTrainedModel, plan: LeanPlan, rotation: torch.Tensor) -> Decoder:
    """Take the weights of a model, whose layers are dismantled: matrices with the same input become one. rotation: see
    `Decoder`."""
    base: Any = model.model
    layers = []
    for layer, window in zip(base.layers, plan.windows, strict=True):
        attention, mlp = layer.self_attn, layer.mlp
        qkv = _taken(attention, "q_proj", "k_proj", "v_proj")
        norms = (attention.q_norm.weight, attention.k_norm.weight) if plan.head_norms else None
        layers.append(
            Layer(
                layer.input_layernorm.weight,
                qkv,
                norms,
                attention.o_proj,
                layer.post_attention_layernorm.weight,
                _taken(mlp, "gate_proj", "up_proj"),
                mlp.down_proj,
                window,
            )
        )
    return Decoder(
        base.embed_tokens.weight,
        layers,
        base.norm.weight,
        model.get_output_embeddings().weight,
        rotation.to(model.device),
        plan.epsilon,
    )


def forward(
    decoder: Decoder,
    cache: SlotCache,
    rows: torch.Tensor,
    wanted: torch.Tensor,
    tiles: torch.Tensor,
    tile_rows: int,
    parts: int,
) -> torch.Tensor:
    """[wanted, vocab] logits. Writes keys and values of all rows to the cache. rows, wanted, tiles: the table of the
    pass (`pass_table.GpuPassTable`) on the device. tile_rows, parts: see `attend`."""
    x = functional.embedding(rows[:, TOKEN], decoder.embedding).float()
    delta = None
    for number, layer in enumerate(decoder.layers):
        keys, values = cache.keys[number], cache.values[number]
        qkv = layer.qkv(add_and_norm(x, delta, layer.input_norm, decoder.epsilon))
        rotate_and_store(qkv, keys, values, rows, decoder.rotation, layer.head_norms, decoder.epsilon)
        attended = attend(qkv, keys, values, rows, tiles, tile_rows, layer.window, parts)
        hidden = add_and_norm(x, layer.output(attended), layer.post_norm, decoder.epsilon)
        delta = layer.down(gate(layer.gate_up(hidden)))
    return functional.linear(add_and_norm(x, delta, decoder.final_norm, decoder.epsilon, wanted), decoder.head)


def _taken(module: Any, *names: str) -> nn.Linear:
    """Linear layers with the same input as one; the module no longer holds them."""
    linear = concatenated([getattr(module, name) for name in names])
    assert isinstance(linear, nn.Linear), "the layers of an unquantized model have the same kind"
    for name in names:
        setattr(module, name, None)
    return linear
