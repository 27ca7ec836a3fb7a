"""The torch engine: the engine contract over an unmodified transformers model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from pipeline.decoding.tree import BoolArray, FloatArray, IntArray
from pipeline.engine.contract import EngineLimits, NodeLogits, VerifyItem
from pipeline.engine.torch.attention import Segment, SlotAttention, segment_mask, segment_positions
from pipeline.engine.torch.fusion import fuse_layers
from pipeline.engine.torch.kv_cache import SlotCache
from pipeline.engine.torch.largest import PassCandidates, argmax, block_maxima
from pipeline.engine.torch.own_attention import use_attention
from pipeline.engine.torch.packed_linear import can_pack, pack_linears
from pipeline.engine.torch.quantized_linear import pack_quantized
from pipeline.engine.torch.slots import Slot, SlotEngine, check_item, first_row, slot_of

_engine_numbers = itertools.count()
# (up to, step): passes are padded to a multiple of the step, because oneDNN creates and keeps a kernel (half a
# millisecond, half a megabyte) for each number of rows and each shape of weights.
_ROW_STEPS = ((40, 1), (64, 4), (256, 16))
_LARGE_STEP = 64


class TorchNodeLogits:
    """Logits of one item of a pass. logits: [n + 1, vocab]. choices: [n + 1]. candidates: of the whole pass. rows: the
    item's rows in it. pending: [num_pending, vocab] if requested."""

    def __init__(
        self,
        logits: torch.Tensor,
        choices: IntArray,
        candidates: PassCandidates,
        rows: slice,
        pending: torch.Tensor | None = None,
    ) -> None:
        self._pending = pending
        self._logits = logits
        self._choices = choices
        self._candidates = candidates
        self._rows = rows

    @property
    def choices(self) -> IntArray:
        return self._choices

    def row(self, index: int) -> FloatArray:
        return self._logits[index].float().cpu().numpy()

    def top_k(self, k: int) -> tuple[IntArray, FloatArray]:
        ids, probabilities = self._candidates.top_k(k)
        return ids[self._rows], probabilities[self._rows]

    def pending(self) -> list[FloatArray]:
        return [] if self._pending is None else list(self._pending.float().cpu().numpy())


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
        num_kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        self._group_size = config.num_attention_heads // num_kv_heads
        num_slots = 2 * limits.max_batch_size if num_slots is None else num_slots
        self._cache = SlotCache.allocate(
            num_layers=config.num_hidden_layers,
            num_slots=num_slots,
            num_kv_heads=num_kv_heads // (num_shards or 1),
            max_seq_len=limits.max_seq_len,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            dtype=self._dtype,
            device=self._device,
        )
        super().__init__(limits, self._cache, num_slots)
        self._sliding_window: int | None = getattr(config, "sliding_window", None) or None  # some configs have 0
        self._attention = SlotAttention(self._cache)
        # transformers looks up attention functions by name, so each engine registers its own under another name.
        use_attention(model, self._attention, f"slot_tree_{next(_engine_numbers)}")
        if num_shards is None:
            fuse_layers(model)
            if can_pack(model):
                pack_linears(model)
            pack_quantized(model, self._dtype)

    @torch.inference_mode()
    def verify(self, items: Sequence[VerifyItem]) -> list[NodeLogits | None]:
        token_ids: list[IntArray] = []
        positions: list[IntArray] = []
        segments: list[Segment] = []
        wanted_rows: list[int] = []
        start = 0
        for item in items:
            slot = slot_of(item.sequence)
            num_pending = slot.num_pending if item.num_pending is None else item.num_pending
            is_last = num_pending == slot.num_pending
            check_item(item, self.limits)
            first = slot.num_cached_tokens
            token_ids += [slot.tokens[first : first + num_pending], item.tree.token_ids]
            segment, segment_position = self._segment(slot, start, num_pending, item)
            segments.append(segment)
            positions.append(segment_position)
            wanted_rows += range(start + first_row(item, num_pending, is_last), start + segment.length)
            start += segment.length
        logits = self._forward(np.concatenate(token_ids), np.concatenate(positions), segments, wanted_rows)
        maxima = block_maxima(logits)
        candidates = PassCandidates(logits, maxima)
        choices = argmax(logits, maxima).to(torch.int32).cpu().numpy()
        results: list[NodeLogits | None] = []
        row = 0
        for item, segment in zip(items, segments, strict=True):
            slot, num_pending = slot_of(item.sequence), segment.length - len(item.tree)
            slot.num_cached_tokens += num_pending
            pending = None
            if item.pending_rows:
                pending = logits[row : row + num_pending]
                row += num_pending - (slot.num_pending == 0)  # the last one is the root's
            if slot.num_pending:
                nothing = slice(row, row)
                rows = TorchNodeLogits(logits[nothing], choices[nothing], candidates, nothing, pending)
                results.append(rows if item.pending_rows else None)
                continue
            nodes = slice(row, row + len(item.tree) + 1)
            results.append(TorchNodeLogits(logits[nodes], choices[nodes], candidates, nodes, pending))
            row = nodes.stop
        return results

    def _segment(self, slot: Slot, start: int, num_pending: int, item: VerifyItem) -> tuple[Segment, IntArray]:
        cached, length = slot.num_cached_tokens, num_pending + len(item.tree)
        mask = sliding_mask = None
        if length > 1:
            mask = sliding_mask = self._score_mask(segment_mask(cached, num_pending, item.tree))
        window = self._sliding_window
        if window is not None and cached + length > window:
            sliding_mask = self._score_mask(segment_mask(cached, num_pending, item.tree, window))
        positions = segment_positions(cached, num_pending, item.tree)
        return Segment(slot.index, start, length, cached, mask, sliding_mask, positions), positions

    def _score_mask(self, visible: BoolArray) -> torch.Tensor:
        """[group * len, total] 0 where visible, -inf elsewhere, repeated for each query head of a group."""
        mask = torch.zeros(visible.shape, dtype=self._dtype).masked_fill_(torch.from_numpy(~visible), -torch.inf)
        return mask.repeat(self._group_size, 1).to(self._device)

    def _forward(
        self, token_ids: IntArray, positions: IntArray, segments: Sequence[Segment], wanted_rows: Sequence[int]
    ) -> torch.Tensor:
        """[wanted rows, vocab] logits of one pass over all segments."""
        self._attention.segments = segments
        output: Any = self._model(
            input_ids=self._rows(token_ids)[None],
            position_ids=self._rows(positions)[None],
            use_cache=False,
            logits_to_keep=self._rows(wanted_rows),
        )
        logits: torch.Tensor = output.logits[0, : len(wanted_rows)]
        return logits

    def _rows(self, values: IntArray | Sequence[int]) -> torch.Tensor:
        """Values on the device, padded with zeros to `num_rows`."""
        padded = torch.zeros(num_rows(len(values)), dtype=torch.int64)
        padded[: len(values)] = torch.as_tensor(values)
        return padded.to(self._device)


def num_rows(count: int) -> int:
    """Number of rows of a pass over `count` tokens, padding included."""
    step = next((step for limit, step in _ROW_STEPS if count <= limit), _LARGE_STEP)
    return -(-count // step) * step
