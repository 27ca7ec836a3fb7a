"""Tree attention over the slot cache, as an attention function for transformers' own modelling code.

The tokens of all sequences of a pass are concatenated, so linear layers multiply one matrix without padding. Only
attention is computed per sequence: its new keys and values go into its slot after the cached ones; its queries see

    [ cached tokens: all | pending tokens: up to their own | tree nodes: their ancestors and themselves ]

Grouped query heads become additional query rows of their key head, so keys and values are never repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from pipeline.decoding.tree import BoolArray, IntArray, ancestor_mask
from pipeline.engine.torch.kv_cache import SlotCache
from pipeline.engine.torch.slots import Segment


class MaskedSegment(NamedTuple):
    """A segment and what it sees. mask: [group * length, cached + length] added to the scores; None for a single token,
    which attends to everything. sliding_mask: the same for layers with a sliding window."""

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
    """[cached + length]"""
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
            keys[slot, :, segment.cached : end] = key[0, :, rows]
            values[slot, :, segment.cached : end] = value[0, :, rows]
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
            output[0, rows] = attended.view(num_heads, segment.length, dim).transpose(0, 1)
        return output, None


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
