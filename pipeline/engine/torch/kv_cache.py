"""The slot KV cache: one row of fixed length per sequence, kept after release so that a later prefix can reuse it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from pipeline.checkpoint.disk import gigabytes
from pipeline.decoding.tree import IntArray
from pipeline.engine.contract import ReuseCounters
from pipeline.engine.memory import available_bytes
from pipeline.errors import BuildError, BusyError


@dataclass(slots=True, eq=False)
class Slot:
    """One row of the cache. tokens: [max_seq_len]; `num_tokens` are known, the first `num_cached_tokens` have KV."""

    index: int
    tokens: IntArray
    num_tokens: int = 0
    num_cached_tokens: int = 0
    num_reused_tokens: int = 0
    in_use: bool = False
    last_used: int = 0

    @property
    def pending(self) -> Sequence[int]:
        ids: list[int] = self.tokens[self.num_cached_tokens : self.num_tokens].tolist()
        return ids

    @property
    def num_pending(self) -> int:
        return self.num_tokens - self.num_cached_tokens


def _available_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return available_bytes()


@dataclass(slots=True, eq=False)
class SlotCache:
    """keys, values: [layer, slot, kv_head, max_seq_len, head_dim]. The system claims memory as it is written."""

    keys: torch.Tensor
    values: torch.Tensor
    slots: list[Slot]
    counters: ReuseCounters = field(default_factory=ReuseCounters)
    _clock: int = 0

    @classmethod
    def allocate(
        cls,
        *,
        num_layers: int,
        num_slots: int,
        num_kv_heads: int,
        max_seq_len: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> SlotCache:
        """Raises BuildError if the device has less memory than that."""
        shape = (num_layers, num_slots, num_kv_heads, max_seq_len, head_dim)
        num_bytes = 2 * math.prod(shape) * dtype.itemsize
        available = _available_bytes(device)
        if num_bytes > available:
            raise BuildError(
                f"A KV cache of {num_slots} sequences (engine.max_batch_size, and as many that are kept for reuse) of "
                f"engine.max_seq_len = {max_seq_len} tokens takes {gigabytes(num_bytes)}; {gigabytes(available)} "
                f"are available on {device}. Lower one of the two."
            )
        keys = torch.empty(shape, dtype=dtype, device=device)
        slots = [Slot(index, np.zeros(max_seq_len, np.int32)) for index in range(num_slots)]
        return cls(keys, torch.empty_like(keys), slots)

    def claim(self, token_ids: IntArray, reuse: bool = True) -> Slot:
        """A free slot that knows token_ids and holds the KV of the longest known prefix (never of the last token, whose
        logits are still wanted), or nothing if `reuse` is off. Raises BusyError if every slot is in use."""
        free = [slot for slot in self.slots if not slot.in_use]
        if not free:
            raise BusyError(f"all {len(self.slots)} sequences of the engine are in use; send the request again later")
        length, source = max(
            ((_common_prefix(slot, token_ids), slot) for slot in self.slots), key=lambda match: match[0]
        )
        length = length if reuse else 0
        # A request that continues the greater part of a slot takes it over. For a short shared head (a system prompt)
        # its KV is copied instead, so that the older conversation stays available.
        if not source.in_use and 2 * length >= source.num_cached_tokens:
            target = source
        else:
            target = min(free, key=lambda slot: slot.last_used)
            if target is not source and length:
                self.keys[:, target.index, :, :length] = self.keys[:, source.index, :, :length]
                self.values[:, target.index, :, :length] = self.values[:, source.index, :, :length]
        target.tokens[: len(token_ids)] = token_ids
        target.num_tokens = len(token_ids)
        target.num_cached_tokens = target.num_reused_tokens = length
        target.in_use = True
        self.counters.num_opened += 1
        self.counters.num_hits += length > 0
        self.counters.num_reused_tokens += length
        self.counters.num_prompt_tokens += len(token_ids)
        return target

    def keep_path(self, slot: Slot, nodes: Sequence[int]) -> None:
        """Move the KV of the accepted nodes, which lie behind the cached tokens in tree order, to where they belong."""
        start, length = slot.num_cached_tokens, len(nodes)
        if list(nodes) != list(range(length)):
            source = torch.as_tensor(nodes, device=self.keys.device) + start
            self.keys[:, slot.index, :, start : start + length] = self.keys[:, slot.index, :, source]
            self.values[:, slot.index, :, start : start + length] = self.values[:, slot.index, :, source]
        slot.num_cached_tokens += length

    def forget(self) -> None:
        """Let no later sequence reuse what the free slots hold."""
        for slot in self.slots:
            if not slot.in_use:
                slot.num_tokens = slot.num_cached_tokens = 0

    def release(self, slot: Slot) -> None:
        """Free the slot; what it holds may be reused until the slot is claimed for something else."""
        self._clock += 1
        slot.in_use = False
        slot.last_used = self._clock


def _common_prefix(slot: Slot, token_ids: IntArray) -> int:
    length = min(slot.num_cached_tokens, len(token_ids) - 1)
    differs = np.flatnonzero(slot.tokens[:length] != token_ids[:length])
    return int(differs[0]) if len(differs) else length
