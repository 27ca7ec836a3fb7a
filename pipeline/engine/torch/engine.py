"""The torch engine: the engine contract over an unmodified transformers model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedModel

from pipeline.checkpoint.model_config import kv_heads
from pipeline.decoding.tree import BoolArray, IntArray
from pipeline.engine.contract import EngineLimits
from pipeline.engine.memory import slots_for
from pipeline.engine.torch.attention import MaskedSegment, SlotAttention, SlotCache, segment_mask, use_attention
from pipeline.engine.torch.fusion import fuse_layers
from pipeline.engine.torch.linear_layers import pack_linears
from pipeline.engine.torch.slots import Segment, SlotEngine
from pipeline.engine.torch.top_k import TorchLogits, summary_of

# (up to, step): passes are padded to a multiple of the step, because oneDNN creates and keeps a kernel (half a
# millisecond, half a megabyte) for each number of rows and each shape of weights.
_ROW_STEPS = ((40, 1), (64, 4), (256, 16))
_LARGE_STEP = 64
# Without cuDNN's, which takes 60 ms to plan each new shape, and every pass has another one.
_ATTENTION_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class TorchEngine(SlotEngine):
    """Implements `pipeline.engine.contract.Engine`. Owns the model, and changes its layers to faster forms."""

    def __init__(
        self, model: PreTrainedModel, limits: EngineLimits, num_slots: int | None = None, num_shards: int | None = None
    ) -> None:
        """num_slots: rows of the KV cache; those beyond `limits.max_batch_size` keep finished sequences for reuse.
        num_shards: for a tensor-parallel model, number of parts of its key/value heads; its layers are not changed."""
        self._model = model.eval()
        config = model.config.get_text_config()
        parameter = next(model.parameters())
        self._device, self._dtype = parameter.device, parameter.dtype
        num_kv_heads, head_dim = kv_heads(config)
        self._group_size = config.num_attention_heads // num_kv_heads
        num_slots = slots_for(limits.max_batch_size) if num_slots is None else num_slots
        num_own_heads = num_kv_heads // (num_shards or 1)
        shape = (config.num_hidden_layers, num_slots, num_own_heads, limits.max_seq_len, head_dim)
        self._cache = SlotCache(shape, self._dtype, self._device)
        super().__init__(limits, self._cache, num_slots)
        self._sliding_window: int | None = getattr(config, "sliding_window", None) or None  # Qwen2-MoE: 0 for none
        self._attention = SlotAttention(self._cache)
        use_attention(model, self._attention)
        if num_shards is None:
            fuse_layers(model)
            if self._dtype == torch.float32:
                pack_linears(model)

    @torch.inference_mode()
    def _compute(self, segments: Sequence[Segment], wanted: IntArray, num_top: int) -> TorchLogits:
        self._attention.segments = [self._masked(segment) for segment in segments]
        with sdpa_kernel(_ATTENTION_KERNELS):
            output: Any = self._model(
                input_ids=self._rows(np.concatenate([segment.token_ids for segment in segments]))[None],
                position_ids=self._rows(np.concatenate([segment.positions for segment in segments]))[None],
                use_cache=False,
                logits_to_keep=self._rows(wanted),
            )
        logits = output.logits[0, : len(wanted)]
        return TorchLogits(logits, summary_of(logits, num_top))

    def _masked(self, segment: Segment) -> MaskedSegment:
        mask = sliding_mask = None
        if segment.length > 1:
            mask = sliding_mask = self._score_mask(segment_mask(segment))
        window = self._sliding_window
        if window is not None and segment.cached + segment.length > window:
            sliding_mask = self._score_mask(segment_mask(segment, window))
        return MaskedSegment(segment, mask, sliding_mask)

    def _score_mask(self, visible: BoolArray) -> torch.Tensor:
        """[group * len, total] 0 where visible, -inf elsewhere, repeated for each query head of a group."""
        mask = torch.zeros(visible.shape, dtype=self._dtype).masked_fill_(torch.from_numpy(~visible), -torch.inf)
        return mask.repeat(self._group_size, 1).to(self._device)

    def _rows(self, values: IntArray) -> torch.Tensor:
        """Values on the device, padded with zeros to `num_rows`."""
        padded = torch.zeros(num_rows(len(values)), dtype=torch.int64)
        padded[: len(values)] = torch.as_tensor(values)
        return padded.to(self._device)


def num_rows(count: int) -> int:
    """Number of rows of a pass over `count` tokens, padding included."""
    step = next((step for limit, step in _ROW_STEPS if count <= limit), _LARGE_STEP)
    return -(-count // step) * step
