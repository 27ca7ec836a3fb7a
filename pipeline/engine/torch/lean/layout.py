"""Weights of a transformers model <-> the file that the lean pass maps into memory.

`model.safetensors` holds the matrices qkv, output, gate_up and down, stacked over layers, and `head`, in the block
layout of `tiles`. Each `.weight` has a `.bias`. In int8 it also has a `.scale` per column and a `.start`, the initial
sum of a column: -128 times the sum of its weights, which cancels the zero point of the rows. Weights and norms include
the factors of `smoothing`. In bfloat16 the embedding has this type too. All widths are padded to 16 with zeros, that of
a bfloat16 embedding to 32, so that every tensor begins at a multiple of 64 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from pipeline.engine.torch.lean.plan import PLAN, WEIGHTS, Kind, LeanPlan, plan_of, read_plan
from pipeline.engine.torch.lean.smoothing import Factors, State, no_factors, smoothing_factors
from pipeline.engine.torch.lean.tables import Array
from pipeline.engine.torch.lean.vectors import LANES, padded
from pipeline.engine.torch.lean.weights import as_float32, map_weights, save_weights
from pipeline.engine.torch.linear_layers import quantize
from pipeline.engine.torch.quantized_files import empty_model

_INPUTS_PER_STEP: dict[Kind, int] = {"float32": 1, "bfloat16": 2, "int8": 4}


def save_lean(model: PreTrainedModel, kind: Kind, folder: Path, texts: Sequence[Sequence[int]] = ()) -> bool:
    """Write a model for the lean pass. texts: token ids, for int8 with factors of `smoothing`. Returns False, without
    writing, if the lean pass does not support the model."""
    config = model.config
    inverse_frequencies, rotary_scale = rotary(config)
    plan = plan_of(config, kind, rotary_scale)
    if plan is None:
        return False
    state = model.state_dict()
    folder.mkdir(parents=True, exist_ok=True)
    factors = smoothing_factors(state, plan, inverse_frequencies, texts) if texts else no_factors(plan)
    tensors = {"inverse_frequencies": _wide(inverse_frequencies), **_tensors(state, plan, factors)}
    save_weights(
        folder / WEIGHTS, tensors, plan.num_layers, lambda layer: _tensors_of_layer(state, plan, layer, factors)
    )
    (folder / PLAN).write_text(plan.model_dump_json(indent=1) + "\n", encoding="utf-8")
    # As in save_pretrained of a model. A config from a GGUF file lacks it.
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)
    return True


def load_model(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The transformers model with a lean engine's weights, dequantized."""
    plan, model = read_plan(folder), empty_model(folder, dtype)
    assert plan is not None, "the folder holds an engine for the lean pass"
    # The file has a bias for every matrix; the model may have fewer.
    plain, names = _plain(map_weights(folder / WEIGHTS), plan), model.state_dict().keys()
    model.load_state_dict({name: torch.from_numpy(plain[name]) for name in names})
    return model.eval()


def rotary(config: Any) -> tuple[Array, float]:
    """[head_dim / 2] inverse frequencies and the factor of sines and cosines, as transformers computes them."""
    kind = config.rope_parameters["rope_type"]
    if kind == "default":
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
        return (1.0 / (config.rope_parameters["rope_theta"] ** exponents)).numpy(), 1.0
    frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return frequencies.numpy(), float(scale)


def _parts(plan: LeanPlan) -> dict[str, list[tuple[str, int, int]]]:
    """Linear layers of each matrix, in order, with their first column and their number of columns. Gate and up begin at
    multiples of 16."""
    dim, inner = plan.head_dim, plan.intermediate_size
    queries, keys = plan.num_heads * dim, plan.num_kv_heads * dim
    return {
        "qkv": [
            ("self_attn.q_proj", 0, queries),
            ("self_attn.k_proj", queries, keys),
            ("self_attn.v_proj", queries + keys, keys),
        ],
        "output": [("self_attn.o_proj", 0, plan.hidden_size)],
        "gate_up": [("mlp.gate_proj", 0, inner), ("mlp.up_proj", padded(inner), inner)],
        "down": [("mlp.down_proj", 0, plan.hidden_size)],
    }


def _tensors(state: State, plan: LeanPlan, factors: Factors) -> dict[str, Array]:
    """Tensors that belong to no layer."""
    head = state["model.embed_tokens.weight" if plan.tied else "lm_head.weight"]
    if plan.kind == "int8":
        head = head * factors.head
    tensors = {f"head.{field}": value for field, value in _pack(head, torch.zeros(len(head)), plan.kind).items()}
    # Padding columns are no tokens, so they must never be the largest.
    tensors["head.bias"][plan.vocab_size :] = -np.inf
    if not plan.tied:
        embedding = state["model.embed_tokens.weight"]
        in_16_bit = plan.kind == "bfloat16"
        tensors["embedding"] = _wide(_bits(embedding), 2 * LANES) if in_16_bit else _wide(embedding.float().numpy())
    tensors["final_norm"] = _wide((state["model.norm.weight"].float() / factors.head).numpy())
    return tensors


def _tensors_of_layer(state: State, plan: LeanPlan, layer: int, factors: Factors) -> dict[str, Array]:
    prefix = f"model.layers.{layer}."
    qkv, gate_up, down = factors.qkv[layer], factors.gate_up[layer], factors.down[layer]
    of_inputs = {"qkv": qkv, "gate_up": gate_up, "down": down}
    tensors: dict[str, Array] = {}
    for name, parts in _parts(plan).items():
        weight, bias = _joined(state, prefix, parts)
        if name in of_inputs:
            weight *= of_inputs[name]
        if name == "gate_up":  # the outputs of up are factors of the inputs of down
            _, (_, place, width) = parts
            weight[place : place + width] /= down[:, None]
            bias[place : place + width] /= down
        tensors |= {f"{name}.{field}": value for field, value in _pack(weight, bias, plan.kind).items()}
    norms = {"input_norm": ("input_layernorm", qkv), "post_norm": ("post_attention_layernorm", gate_up)}
    if plan.head_norms:
        ones = torch.ones(plan.head_dim)
        norms |= {"q_norm": ("self_attn.q_norm", ones), "k_norm": ("self_attn.k_norm", ones)}
    for name, (module, divisors) in norms.items():
        tensors[name] = _wide((state[f"{prefix}{module}.weight"].float() / divisors).numpy())
    return tensors


def _joined(state: State, prefix: str, parts: list[tuple[str, int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """[out, in] weight and [out] bias of several linear layers as one."""
    (first_name, *_), (_, last_place, last_width) = parts[0], parts[-1]
    num_outputs = last_place + last_width
    weight = torch.zeros(num_outputs, state[f"{prefix}{first_name}.weight"].shape[1])
    bias = torch.zeros(num_outputs)
    for name, place, width in parts:
        weight[place : place + width] = state[f"{prefix}{name}.weight"]
        if f"{prefix}{name}.bias" in state:
            bias[place : place + width] = state[f"{prefix}{name}.bias"]
    return weight, bias


def _wide(values: Array, multiple: int = LANES) -> Array:
    """Pad the last axis to a multiple."""
    return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, -values.shape[-1] % multiple)])


def _bits(weight: torch.Tensor) -> Array:
    """The bits of a tensor in bfloat16, rounded to the nearest, ties to even."""
    bits: Array = weight.bfloat16().view(torch.uint16).numpy()
    return bits


def _pack(weight: torch.Tensor, bias: torch.Tensor, kind: Kind) -> dict[str, Array]:
    """A matrix [out, in] in blocks of 16 columns, with the values per column."""
    num_out, num_in = padded(weight.shape[0]), padded(weight.shape[1])
    result = {"bias": _wide(bias.float().numpy())}
    if kind == "int8":
        integers, scale = quantize(weight)
        whole: Array = np.zeros((num_out, num_in), np.int8)
        whole[: weight.shape[0], : weight.shape[1]] = integers.numpy()
        result["scale"] = _wide(scale.numpy())
        result["start"] = (-128 * whole.sum(axis=1, dtype=np.int64)).astype(np.int32)
    else:
        plain = _bits(weight) if kind == "bfloat16" else weight.float().numpy()
        whole = np.zeros((num_out, num_in), plain.dtype)
        whole[: weight.shape[0], : weight.shape[1]] = plain
    step = _INPUTS_PER_STEP[kind]
    blocks = whole.reshape(num_out // LANES, LANES, num_in // step, step).transpose(0, 2, 1, 3)
    return {"weight": np.ascontiguousarray(blocks), **result}


def unpack(tensors: dict[str, Array], name: str, layer: int | None, num_inputs: int) -> Array:
    """[padded out, num_inputs] float32 weights of a packed matrix."""
    place = () if layer is None else (layer,)
    weight = tensors[f"{name}.weight"][place]
    blocks, steps, lanes, step = weight.shape
    plain = as_float32(weight.transpose(0, 2, 1, 3).reshape(blocks * lanes, steps * step)[:, :num_inputs])
    if f"{name}.scale" in tensors:
        plain *= tensors[f"{name}.scale"][place][:, None]
    return plain


def _plain(tensors: dict[str, Array], plan: LeanPlan) -> dict[str, Array]:
    """The state dict of the transformers model, with the factors of `smoothing`."""
    hidden, state = plan.hidden_size, {}
    inputs = {
        "qkv": hidden,
        "output": plan.num_heads * plan.head_dim,
        "gate_up": hidden,
        "down": plan.intermediate_size,
    }
    for layer in range(plan.num_layers):
        prefix = f"model.layers.{layer}."
        for name, parts in _parts(plan).items():
            weight, bias = unpack(tensors, name, layer, inputs[name]), tensors[f"{name}.bias"][layer]
            for module, place, width in parts:
                state[f"{prefix}{module}.weight"] = weight[place : place + width]
                state[f"{prefix}{module}.bias"] = bias[place : place + width].copy()
        state[f"{prefix}input_layernorm.weight"] = tensors["input_norm"][layer, :hidden].copy()
        state[f"{prefix}post_attention_layernorm.weight"] = tensors["post_norm"][layer, :hidden].copy()
        if plan.head_norms:
            state[f"{prefix}self_attn.q_norm.weight"] = tensors["q_norm"][layer, : plan.head_dim].copy()
            state[f"{prefix}self_attn.k_norm.weight"] = tensors["k_norm"][layer, : plan.head_dim].copy()
    state["model.norm.weight"] = tensors["final_norm"][:hidden].copy()
    head = unpack(tensors, "head", None, hidden)[: plan.vocab_size]
    state["lm_head.weight"] = head
    state["model.embed_tokens.weight"] = head if plan.tied else as_float32(tensors["embedding"][:, :hidden])
    return state
