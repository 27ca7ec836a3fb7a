"""The engine contract over passes on an NVIDIA GPU.

Launching the kernels of a pass takes several times as long as running them. So passes are recorded as CUDA graphs, one
for each of some numbers of rows, and a pass is padded to the next of these. Only larger passes are launched kernel by
kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from transformers import PreTrainedModel

from pipeline.checkpoint.architectures import LEAN_ARCHITECTURES
from pipeline.decoding.tree import IntArray
from pipeline.engine.contract import EngineLimits
from pipeline.engine.memory import slots_for
from pipeline.engine.torch.gpu.attention import num_parts, rows_per_tile
from pipeline.engine.torch.gpu.cache import GpuCache
from pipeline.engine.torch.gpu.forward import decoder_of, forward
from pipeline.engine.torch.gpu.graph import PassGraph
from pipeline.engine.torch.gpu.pass_table import table_of
from pipeline.engine.torch.lean.layout import rotary
from pipeline.engine.torch.lean.plan import LeanPlan, plan_of
from pipeline.engine.torch.lean.tables import rotation_table
from pipeline.engine.torch.slots import Segment, SlotEngine
from pipeline.engine.torch.top_k import TorchLogits, summary_of

# Numbers of rows of recorded passes: trees with a token or more of each sequence, then parts of prompts. With weights
# of 16 bits, 64 rows take about as long as one.
_TREE_ROWS, _PROMPT_ROWS = (1, 8, 16, 32, 64, 128, 256), (512, 1024)
# Rows of a recorded pass whose logits are computed.
_MOST_WANTED = _TREE_ROWS[-1]
# Most probable tokens of a row that a pass finds.
_MOST_TOP = 16


def gpu_plan(model: PreTrainedModel) -> LeanPlan | None:
    """The plan of a model; None if it needs transformers' pass."""
    if type(model).__name__ not in LEAN_ARCHITECTURES:
        return None
    return plan_of(model.config, "bfloat16", rotary(model.config)[1])


class GpuEngine(SlotEngine):
    """Implements `pipeline.engine.contract.Engine`. Owns the model, and dismantles its layers."""

    def __init__(
        self, model: PreTrainedModel, plan: LeanPlan, limits: EngineLimits, num_slots: int | None = None
    ) -> None:
        """num_slots: rows of the KV cache; those beyond `limits.max_batch_size` keep finished sequences for reuse.
        Raises BuildError if the KV cache does not fit into memory."""
        num_slots = slots_for(limits.max_batch_size) if num_slots is None else num_slots
        self._device, self._group = model.device, plan.group_size
        shape = (plan.num_layers, num_slots, plan.num_kv_heads, limits.max_seq_len, plan.head_dim)
        self._cache = GpuCache(shape, model.dtype, model.device)
        super().__init__(limits, self._cache, num_slots)
        rotation = rotation_table(rotary(model.config)[0], limits.max_seq_len, plan.rotary_scale)
        self._decoder = decoder_of(model.eval(), plan, torch.from_numpy(rotation))
        self._graphs = self._record()

    @torch.inference_mode()
    def _compute(self, segments: Sequence[Segment], wanted: IntArray, num_top: int) -> TorchLogits:
        self._cache.apply_moves()
        count = sum(segment.length for segment in segments)
        fitting = (graph for graph in self._graphs if graph.num_rows >= count and graph.num_wanted >= len(wanted))
        graph = next(fitting, None)
        is_prompt = graph is None or _is_prompt(graph.num_rows)
        table = table_of(segments, wanted, rows_per_tile(self._group, is_prompt))
        if graph is None:
            rows, wanted_rows, tiles = (
                torch.from_numpy(part).to(self._device) for part in (table.rows, table.wanted, table.tiles)
            )
            return TorchLogits(*self._run(rows, wanted_rows, tiles, is_prompt=True))
        logits, summary = (result[: len(wanted)] for result in graph.run(table))
        return TorchLogits(logits.clone(), summary)  # the next pass overwrites them

    def _run(
        self, rows: torch.Tensor, wanted: torch.Tensor, tiles: torch.Tensor, is_prompt: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of a pass, and their summary."""
        parts = 1 if is_prompt else num_parts(self.limits.max_seq_len)
        tile_rows = rows_per_tile(self._group, is_prompt)
        logits = forward(self._decoder, self._cache, rows, wanted, tiles, tile_rows, parts)
        return logits, summary_of(logits, min(_MOST_TOP, logits.shape[1]))

    @torch.inference_mode()
    def _record(self) -> list[PassGraph]:
        """Record passes, largest first, so that the smaller ones use its memory; return them smallest first."""
        pool = torch.cuda.graph_pool_handle() if self._device.type == "cuda" else None
        graphs: list[PassGraph] = []
        for num_rows in reversed(_TREE_ROWS + _PROMPT_ROWS):
            is_prompt = _is_prompt(num_rows)
            # Every sequence begins a tile.
            num_tiles = min(num_rows, num_rows // rows_per_tile(self._group, is_prompt) + len(self._slots))
            run = partial(self._run, is_prompt=is_prompt)
            graphs.append(PassGraph(num_rows, min(num_rows, _MOST_WANTED), num_tiles, run, self._device, pool))
        return graphs[::-1]


def _is_prompt(num_rows: int) -> bool:
    return num_rows > _TREE_ROWS[-1]
