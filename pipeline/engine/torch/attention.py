"""Tree attention over the slot cache, as an attention function for transformers' own modelling code.

The tokens of all sequences of a pass are concatenated, so linear layers multiply one matrix without padding. Only
attention is computed per sequence: its new keys and values go into its slot after the cached ones; its queries see

    [ cached tokens: all | pending tokens: up to their own | tree nodes: their ancestors and themselves ]

Grouped query heads become additional query rows of their key head, so keys and values are never repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from pipeline.decoding.tree import BoolArray, DraftTree, IntArray, ancestor_mask, depths
from pipeline.engine.torch.kv_cache import SlotCache


@dataclass(frozen=True, slots=True)
class Segment:
    """One sequence's tokens in a pass. start: first row in the pass. mask: [group * len, cached + len] added to the
    scores; None for a single token, which attends to everything. sliding_mask: the same for layers with a sliding
    window. positions: [len] absolute position of each token."""

    slot_index: int
    start: int
    length: int
    num_cached_tokens: int
    mask: torch.Tensor | None
    sliding_mask: torch.Tensor | None
    positions: IntArray


def segment_positions(num_cached_tokens: int, num_pending: int, tree: DraftTree) -> IntArray:
    """[pending + nodes] absolute positions. That of a node is the last pending token's plus the node's depth."""
    pending = np.arange(num_cached_tokens, num_cached_tokens + num_pending, dtype=np.int32)
    return np.concatenate([pending, num_cached_tokens + num_pending - 1 + depths(tree)])


def segment_mask(
    num_cached_tokens: int, num_pending: int, tree: DraftTree, sliding_window: int | None = None
) -> BoolArray:
    """[pending + nodes, cached + pending + nodes] True where a new token may attend. With a sliding window the distance
    must be less than the window, in positions (along the path)."""
    num_new = num_pending + len(tree)
    mask = np.zeros((num_new, num_cached_tokens + num_new), np.bool_)
    mask[:, :num_cached_tokens] = True
    own = mask[:, num_cached_tokens:]
    own[:num_pending, :num_pending] = np.tri(num_pending, dtype=np.bool_)
    own[num_pending:, :num_pending] = True
    own[num_pending:, num_pending:] = ancestor_mask(tree)
    if sliding_window is not None:
        position = segment_positions(num_cached_tokens, num_pending, tree)
        key_position = np.concatenate([np.arange(num_cached_tokens, dtype=np.int32), position])
        mask &= position[:, None] - key_position < sliding_window
    return mask


class SlotAttention:
    """The attention function of one engine. segments: sequences of the current pass."""

    def __init__(self, cache: SlotCache) -> None:
        self._cache = cache
        self.segments: Sequence[Segment] = ()

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
        for segment in self.segments:
            rows = slice(segment.start, segment.start + segment.length)
            end = segment.num_cached_tokens + segment.length
            keys[segment.slot_index, :, segment.num_cached_tokens : end] = key[0, :, rows]
            values[segment.slot_index, :, segment.num_cached_tokens : end] = value[0, :, rows]
            # [1, kv_head, group * len, dim]
            grouped = query[:, :, rows].reshape(1, num_kv_heads, -1, dim)
            mask = segment.sliding_mask if is_sliding else segment.mask
            if slopes is not None:
                bias = _position_bias(segment, slopes, query.dtype)
                mask = bias if mask is None else bias + mask
            slot_keys, slot_values = keys[segment.slot_index, None, :, :end], values[segment.slot_index, None, :, :end]
            attended = (
                scaled_dot_product_attention(grouped, slot_keys, slot_values, attn_mask=mask, scale=scale)
                if softcap is None
                else _capped_attention(grouped, slot_keys, slot_values, mask, scale, softcap)
            )
            output[0, rows] = attended.view(num_heads, segment.length, dim).transpose(0, 1)
        return output, None


def _position_bias(segment: Segment, slopes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[head, 1, cached + len] slope times position of the key, which in a tree counts along the path."""
    cached = np.arange(segment.num_cached_tokens, dtype=np.int32)
    positions = torch.from_numpy(np.concatenate([cached, segment.positions])).to(slopes.device)
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
