"""Slot attention for models whose attention cannot be replaced through transformers' registry: GPT-J and BLOOM.

Their modules still compute projections and rotary embeddings; only scores and weighted sums are computed here.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, BloomForCausalLM, GPTJForCausalLM, PreTrainedModel

from pipeline.engine.torch.attention import SlotAttention


def use_attention(model: PreTrainedModel, attention: SlotAttention, name: str) -> None:
    """Make every layer of the model call `attention`. name: for the registry, unique in the process."""
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
        AttentionInterface.register(name, attention)
        model.set_attn_implementation(name)


class AlibiAttention(nn.Module):
    """BLOOM's attention, with a bias per head in proportion to the key's position (ALiBi, arXiv 2108.12409)."""

    def __init__(self, plain: Any, slopes: torch.Tensor, attention: SlotAttention) -> None:
        """slopes: [head] bias per position."""
        super().__init__()
        self.query_key_value, self.dense = plain.query_key_value, plain.dense
        self.layer_idx = plain.layer_idx
        self._num_heads = plain.num_heads
        self._slopes = slopes
        self._attention = (attention,)

    def forward(self, hidden_states: torch.Tensor, residual: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        # [1, tokens, head, (query, key, value), dim]
        projected = self.query_key_value(hidden_states).unflatten(2, (self._num_heads, 3, -1))
        query, key, value = (part.transpose(1, 2) for part in projected.unbind(3))
        attended, _weights = self._attention[0](self, query, key, value, None, slopes=self._slopes)
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
