"""Factors that reduce the rounding errors of int8 activations (SmoothQuant, arXiv 2211.10438).

A row of activations has one scale, that of its largest entry. Some input channels of a matrix have far larger entries
than others, which then round to few different integers. So each channel j is divided by a factor s_j, and its weights
are multiplied by it:

    x W = (x / s) (s W),    s_j = sqrt(largest |x_j| / largest |W_j|)

The division takes no time: the weights of the norm before a matrix include it, or those of the up projection. An output
layer that is also the embedding has no factors.

The largest inputs are those of a few short texts. They are computed in float64, and the factors are rounded to
bfloat16, so every processor builds the same engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from pipeline.engine.torch.lean.plan import LeanPlan
from pipeline.engine.torch.lean.tables import Array

TEXTS = Path(__file__).with_name("smoothing_texts.json")

State = Mapping[str, torch.Tensor]


class Factors(NamedTuple):
    """Factors of the input channels of matrices. qkv, gate_up: [layers, hidden]. down: [layers, intermediate]. head:
    [hidden], 1 if the output layer is the embedding."""

    qkv: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    head: torch.Tensor


def no_factors(plan: LeanPlan) -> Factors:
    """Factors of 1."""
    by_hidden = torch.ones(plan.num_layers, plan.hidden_size)
    return Factors(by_hidden, by_hidden, torch.ones(plan.num_layers, plan.intermediate_size), by_hidden[0])


def smoothing_texts(tokenizer: Any, vocab_size: int, longest: int) -> list[list[int]]:
    """Token ids of the texts that the factors come from, without those that the model lacks: the build reports later
    that a tokenizer is of another model. longest: maximum number of tokens of each. Texts without tokens are left
    out."""
    texts = map(tokenizer.encode, json.loads(TEXTS.read_text(encoding="utf-8")))
    known = ([token for token in text if token < vocab_size][:longest] for text in texts)
    return [text for text in known if text]


def smoothing_factors(
    state: State, plan: LeanPlan, inverse_frequencies: Array, texts: Sequence[Sequence[int]]
) -> Factors:
    """The factors of a model. state: its state dict. inverse_frequencies: [head_dim / 2] of the rotary embedding.
    texts: token ids, not empty. Holds one layer in float64 beside the model."""
    embedding = state["model.embed_tokens.weight"]
    hidden = [embedding[torch.tensor(text)].double() for text in texts]
    frequencies = torch.from_numpy(inverse_frequencies).double()
    qkv, gate_up, down = list[torch.Tensor](), list[torch.Tensor](), list[torch.Tensor]()
    for layer in range(plan.num_layers):
        prefix = f"model.layers.{layer}."
        weights = {
            name.removeprefix(prefix): value.double() for name, value in state.items() if name.startswith(prefix)
        }
        inputs = [_norm(rows, weights["input_layernorm.weight"], plan) for rows in hidden]
        qkv.append(_factors(inputs, *(weights[f"self_attn.{name}_proj.weight"] for name in "qkv")))
        attended = [_attention(rows, weights, plan, frequencies) for rows in inputs]
        hidden = [rows + _linear(new, weights, "self_attn.o_proj") for rows, new in zip(hidden, attended, strict=True)]
        inputs = [_norm(rows, weights["post_attention_layernorm.weight"], plan) for rows in hidden]
        gate_up.append(_factors(inputs, weights["mlp.gate_proj.weight"], weights["mlp.up_proj.weight"]))
        inputs = [
            functional.silu(_linear(rows, weights, "mlp.gate_proj")) * _linear(rows, weights, "mlp.up_proj")
            for rows in inputs
        ]
        down.append(_factors(inputs, weights["mlp.down_proj.weight"]))
        hidden = [rows + _linear(new, weights, "mlp.down_proj") for rows, new in zip(hidden, inputs, strict=True)]
    inputs = [_norm(rows, state["model.norm.weight"].double(), plan) for rows in hidden]
    head = torch.ones(plan.hidden_size) if plan.tied else _factors(inputs, state["lm_head.weight"])
    return Factors(torch.stack(qkv), torch.stack(gate_up), torch.stack(down), head)


def _factors(inputs: Sequence[torch.Tensor], *weights: torch.Tensor) -> torch.Tensor:
    """[channels] factors. inputs: [tokens, channels] of each text. weights: [out, channels]. A channel without inputs
    or weights has the factor 1."""
    largest_input = torch.cat(list(inputs)).abs().amax(0)
    largest_weight = torch.cat([weight.abs().amax(0, keepdim=True).double() for weight in weights]).amax(0)
    factors = (largest_input / largest_weight).sqrt()
    is_used = (largest_input > 0) & (largest_weight > 0)
    return torch.where(is_used, factors, torch.ones_like(factors)).bfloat16().float()


def _linear(rows: torch.Tensor, weights: State, name: str) -> torch.Tensor:
    return functional.linear(rows, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def _norm(rows: torch.Tensor, weight: torch.Tensor, plan: LeanPlan) -> torch.Tensor:
    return rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + plan.epsilon) * weight


def _attention(rows: torch.Tensor, weights: State, plan: LeanPlan, frequencies: torch.Tensor) -> torch.Tensor:
    """[tokens, heads * dim] attention of one text, which is shorter than any sliding window."""
    heads = [
        _linear(rows, weights, f"self_attn.{name}_proj").view(len(rows), -1, plan.head_dim).transpose(0, 1)
        for name in "qkv"
    ]
    angles = torch.arange(len(rows)).double()[:, None] * frequencies
    cosines, sines = angles.cos() * plan.rotary_scale, angles.sin() * plan.rotary_scale
    for index, name in enumerate("qk"):
        if plan.head_norms:
            heads[index] = _norm(heads[index], weights[f"self_attn.{name}_norm.weight"], plan)
        left, right = heads[index].chunk(2, -1)
        heads[index] = torch.cat([left * cosines - right * sines, right * cosines + left * sines], -1)
    queries, keys, values = heads
    attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
    return attended.transpose(0, 1).flatten(1)
