"""Tree attention over the slot cache, as an attention function for transformers' own modelling code.

The tokens of all sequences of a pass are concatenated, so linear layers multiply one matrix without padding. Only
attention is computed per sequence: its new keys and values go into its slot after the cached ones; its queries see

    [ cached tokens: all | pending tokens: up to their own | tree nodes: their ancestors and themselves ]

Grouped query heads become additional query rows of their key head, so keys and values are never repeated.

The attention of GPT-J and BLOOM cannot be replaced through transformers' registry. Their modules still compute
projections and rotary embeddings; only scores and weighted sums are computed here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, BloomForCausalLM, GPTJForCausalLM, PreTrainedModel

from pipeline.decoding.tree import BoolArray, IntArray, ancestor_mask
from pipeline.engine.memory import available_bytes, require_cache_memory
from pipeline.engine.torch.slots import Segment

_REGISTERED_AS = "slot_tree"


class SlotCache:
    """The KV cache of transformers' pass. keys, values: [layer, slot, kv_head, max_seq_len, head_dim]. The system
    allocates pages at their first write."""

    def __init__(self, shape: tuple[int, int, int, int, int], dtype: torch.dtype, device: torch.device) -> None:
        """Raises BuildError if the device has not enough memory."""
        _, num_slots, _, max_seq_len, _ = shape
        num_bytes = 2 * math.prod(shape) * dtype.itemsize
        is_cuda = device.type == "cuda"
        available = int(torch.cuda.mem_get_info(device)[0]) if is_cuda else available_bytes()
        require_cache_memory(num_bytes, available, num_slots, max_seq_len, str(device))
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty_like(self.keys)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        self.keys[:, target, :, :length] = self.keys[:, source, :, :length]
        self.values[:, target, :, :length] = self.values[:, source, :, :length]

    def move_path(self, slot: int, start: int, nodes: Sequence[int]) -> None:
        source = torch.as_tensor(nodes, device=self.keys.device) + start
        self.keys[:, slot, :, start : start + len(nodes)] = self.keys[:, slot, :, source]
        self.values[:, slot, :, start : start + len(nodes)] = self.values[:, slot, :, source]


class MaskedSegment(NamedTuple):
    """A segment and the keys that it attends to. mask: [group * length, cached + length] added to the scores; None for
    a single token, which attends to everything. sliding_mask: the same for layers with a sliding window."""

    segment: Segment
    mask: torch.Tensor | None
    sliding_mask: torch.Tensor | None


def segment_mask(segment: Segment, sliding_window: int | None = None) -> BoolArray:
    """[length, cached + length] True where a new token may attend. With a sliding window the distance must be less than
    the window, in positions (along the path)."""
    cached, num_pending = segment.cached, segment.num_pending
    mask = np.zeros((segment.length, cached + segment.length), np.bool_)
    mask[:, :cached] = True
    own = mask[:, cached:]
    own[:num_pending, :num_pending] = np.tri(num_pending, dtype=np.bool_)
    own[num_pending:, :num_pending] = True
    own[num_pending:, num_pending:] = ancestor_mask(segment.tree)
    if sliding_window is not None:
        mask &= segment.positions[:, None] - _key_positions(segment) < sliding_window
    return mask


def _key_positions(segment: Segment) -> IntArray:
    """[cached + length] position of each key: those of the cached tokens, then those of the new ones."""
    return np.concatenate([np.arange(segment.cached, dtype=np.int32), segment.positions])


class SlotAttention:
    """The attention function of one engine. segments: sequences of the current pass."""

    def __init__(self, cache: SlotCache) -> None:
        self._cache = cache
        self.segments: Sequence[MaskedSegment] = ()

    def __call__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        slopes: torch.Tensor | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        """query: [1, head, tokens, dim], key, value: [1, kv_head, tokens, dim] -> [1, tokens, head, dim]. slopes:
        [head] added to the scores per position of the key (ALiBi), only without grouped query heads."""
        layer = int(module.layer_idx)  # type: ignore[arg-type]
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        num_heads, num_kv_heads, dim = query.shape[1], key.shape[1], query.shape[3]
        scale = dim**-0.5 if scaling is None else scaling
        # Qwen2-MoE passes its window only through attention_mask, which is not used here.
        is_sliding = sliding_window is not None or getattr(module, "sliding_window", None) is not None
        # Rows that belong to no segment stay zero.
        output = torch.zeros(1, query.shape[2], num_heads, dim, dtype=query.dtype, device=query.device)
        for segment, plain_mask, sliding_mask in self.segments:
            rows, slot = slice(segment.start, segment.start + segment.length), segment.slot.index
            end = segment.cached + segment.length
            keys[slot, :, segment.cached : end] = _finite(key[0, :, rows])
            values[slot, :, segment.cached : end] = _finite(value[0, :, rows])
            # [1, kv_head, group * len, dim]
            grouped = query[:, :, rows].reshape(1, num_kv_heads, -1, dim)
            mask = sliding_mask if is_sliding else plain_mask
            if slopes is not None:
                bias = _position_bias(segment, slopes, query.dtype)
                mask = bias if mask is None else bias + mask
            slot_keys, slot_values = keys[slot, None, :, :end], values[slot, None, :, :end]
            attended = (
                scaled_dot_product_attention(grouped, slot_keys, slot_values, attn_mask=mask, scale=scale)
                if softcap is None
                else _capped_attention(grouped, slot_keys, slot_values, mask, scale, softcap)
            )
            output[0, rows] = attended.reshape(num_heads, segment.length, dim).transpose(0, 1)
        return output, None


def _finite(rows: torch.Tensor) -> torch.Tensor:
    """Keys or values with 0 for NaN and infinity: a masked draft has the weight 0, and 0 times them would be NaN."""
    return torch.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0)


def _position_bias(segment: Segment, slopes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[head, 1, cached + len] slope times position of the key, which in a tree counts along the path."""
    positions = torch.from_numpy(_key_positions(segment)).to(slopes.device)
    return (slopes[:, None, None] * positions).to(dtype)


def _capped_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float,
) -> torch.Tensor:
    """Attention with scores limited to (-softcap, softcap) by tanh, as in Gemma 2 (arXiv 2408.00118 section 2)."""
    scores = torch.tanh(query @ keys.transpose(2, 3) * (scale / softcap)) * softcap
    if mask is not None:
        scores = scores + mask
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype) @ values


def _attend(module: torch.nn.Module, *tensors: torch.Tensor | None, **options: Any) -> tuple[torch.Tensor, None]:
    """The attention function of all engines in transformers' registry, which holds it for the life of the process."""
    result: tuple[torch.Tensor, None] = module.slot_attention(module, *tensors, **options)  # type: ignore[operator]
    return result


AttentionInterface.register(_REGISTERED_AS, _attend)


def use_attention(model: PreTrainedModel, attention: SlotAttention) -> None:
    """Make every layer of the model call `attention`."""
    if isinstance(model, GPTJForCausalLM):
        for block in model.transformer.h:
            # GPT-J calls this method with rotated queries and keys.
            block.attn._attn = partial(_gptj_attention, attention, block.attn)
    elif isinstance(model, BloomForCausalLM):
        ones = torch.ones(1, 2, device=model.device)
        slopes = model.transformer.build_alibi_tensor(ones, model.config.n_head, torch.float32)[:, 0, 1]
        for block in model.transformer.h:
            block.self_attention = AlibiAttention(block.self_attention, slopes, attention)
    else:
        for module in model.modules():
            if hasattr(module, "layer_idx"):
                module.slot_attention = attention
        model.set_attn_implementation(_REGISTERED_AS)


class AlibiAttention(nn.Module):
    """BLOOM's attention, with a bias per head in proportion to the key's position (ALiBi, arXiv 2108.12409)."""

    def __init__(self, plain: Any, slopes: torch.Tensor, attention: SlotAttention) -> None:
        """slopes: [head] bias per position."""
        super().__init__()
        self.query_key_value, self.dense = plain.query_key_value, plain.dense
        self.layer_idx = plain.layer_idx
        self._num_heads = plain.num_heads
        self._slopes = slopes
        self._attention = attention

    def forward(self, hidden_states: torch.Tensor, residual: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        # [1, tokens, head, (query, key, value), dim]
        projected = self.query_key_value(hidden_states).unflatten(2, (self._num_heads, 3, -1))
        query, key, value = (part.transpose(1, 2) for part in projected.unbind(3))
        attended, _weights = self._attention(self, query, key, value, None, slopes=self._slopes)
        return residual + self.dense(attended.flatten(2)), None


def _gptj_attention(
    attention: SlotAttention,
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, None]:
    """GPT-J's layout: [1, head, tokens, dim]."""
    attended, _weights = attention(module, query, key, value, None)
    return attended.transpose(1, 2), None
