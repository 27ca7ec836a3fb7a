"""Runs passes of a model: holds its buffers, and the tables of addresses for compiled code."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.engine.contract import EngineLimits
from pipeline.engine.torch.lean import tables
from pipeline.engine.torch.lean.attention import scratch_floats
from pipeline.engine.torch.lean.crew import COUNTER_BYTES, Crew
from pipeline.engine.torch.lean.forward import multiply_all, num_counters, run_pass
from pipeline.engine.torch.lean.kv_cache import LeanCache
from pipeline.engine.torch.lean.memory import aligned
from pipeline.engine.torch.lean.node_logits import BLOCK
from pipeline.engine.torch.lean.plan import Kind, LeanPlan
from pipeline.engine.torch.lean.tables import Floats, Longs
from pipeline.engine.torch.lean.tiles import HAS_BF16, MAX_BLOCKS
from pipeline.engine.torch.lean.vectors import LANES
from pipeline.engine.torch.lean.weights import as_float32

Array = npt.NDArray[Any]
_BFLOAT16_ONE = 0x3F80
_MATRICES = ("qkv", "output", "gate_up", "down")
_KINDS: dict[Kind, int] = {"float32": tables.FLOAT32, "bfloat16": tables.BFLOAT16, "int8": tables.INT8}


class Runner:
    """Runs passes of one model. Not thread safe: one thread owns it."""

    def __init__(
        self, plan: LeanPlan, tensors: dict[str, Array], cache: LeanCache, limits: EngineLimits, crew: Crew
    ) -> None:
        self._plan, self._tensors, self._cache, self._crew = plan, tensors, cache, crew
        self._limits = limits
        self._matrices = self._matrix_table()
        self._norms = self._norm_table()
        self._windows = np.asarray(plan.windows, np.int64)
        frequencies = tensors["inverse_frequencies"][: plan.head_dim // 2]
        self._rotation = _rotation(frequencies, limits.max_seq_len, plan.rotary_scale)
        self._zeros = aligned((self._matrices[:, tables.NUM_BLOCKS].max() * LANES,), np.float32)
        self._scratch = self._make_scratch()
        self._counters = aligned((num_counters(plan.num_layers) * COUNTER_BYTES // 8,), np.int64)
        self._sizes = np.zeros(tables.NUM_SIZES, np.int64)
        self._sizes[: tables.NUM_ROWS] = (
            _KINDS[plan.kind],
            crew.num_threads,
            plan.num_layers,
            plan.hidden_size,
            plan.num_heads,
            plan.num_kv_heads,
            plan.head_dim,
            plan.intermediate_size,
            tensors["final_norm"].ctypes.data,
        )
        # Buffers of a pass, kept between passes, and the table of their addresses and bytes per row.
        self._kept: dict[int, Array] = {}
        self._num_kept = 0
        self._table = np.zeros((tables.NONE + 1, 2), np.int64)

    def run(
        self,
        token_ids: npt.NDArray[np.int32],
        rows: Longs,
        segments: Longs,
        masks: Floats,
        wanted: Longs,
    ) -> tuple[Floats, Floats]:
        """Run one pass. token_ids: [rows]; for the other arguments see `run_pass`. Returns [wanted, padded vocabulary]
        logits, -inf after the vocabulary, and [wanted, blocks] the maximum of each `BLOCK` of them."""
        sizes, buffers, logits, maxima = self._prepared(len(token_ids), len(wanted))
        self._embed(token_ids)
        model = self._plan.epsilon, self._matrices, self._norms, self._windows
        context = self._rotation, self._cache.table
        of_pass = rows, segments, masks, wanted, self._scratch, self._counters
        arguments = (sizes, *model, buffers, *context, *of_pass)
        self._crew.run(lambda thread, turn: run_pass(thread, turn, *arguments))
        return logits, maxima

    def multiply(self, num_rows: int) -> None:
        """Compute only the matrices of a pass over `num_rows` rows and all their logits."""
        # The buffers hold addresses only, so `arrays` keeps the memory alive during the call.
        sizes, buffers, *arrays = self._prepared(num_rows, num_rows)
        self._crew.run(lambda thread, turn: multiply_all(thread, turn, sizes, self._matrices, buffers, self._counters))
        del arrays

    def _prepared(self, num_rows: int, num_wanted: int) -> tuple[Longs, Longs, Floats, Floats]:
        """Sizes and buffers of a pass, and the new arrays of its logits and their maxima."""
        if num_rows > self._num_kept:
            self._grow_buffers(num_rows)
        buffers = self._table.copy()
        width = self._matrices[-1, tables.NUM_BLOCKS] * LANES
        logits = aligned((num_wanted, width), np.float32, np.empty)
        maxima = np.empty((num_wanted, -(-width // BLOCK)), np.float32)
        for place, array in ((tables.LOGITS, logits), (tables.MAXIMA, maxima)):
            buffers[place] = array.ctypes.data, array.shape[1] * 4
        sizes = self._sizes.copy()
        sizes[tables.NUM_ROWS], sizes[tables.NUM_WANTED] = num_rows, num_wanted
        self._counters[:] = 0
        return sizes, buffers, logits, maxima

    def _matrix_table(self) -> Longs:
        """The table `matrices` of `tables`."""
        plan = self._plan
        names: list[tuple[str, int | None]] = [(name, layer) for layer in range(plan.num_layers) for name in _MATRICES]
        table = np.zeros((len(names) + 1, tables.NUM_FIELDS), np.int64)
        for entry, (name, layer) in zip(table, [*names, ("head", None)], strict=True):
            arrays = {
                field: array if layer is None else array[layer]
                for field in ("weight", "start", "scale", "bias")
                if (array := self._tensors.get(f"{name}.{field}")) is not None
            }
            weight = arrays["weight"]
            entry[tables.WEIGHT] = weight.ctypes.data
            entry[tables.NUM_BLOCKS], entry[tables.STEPS] = weight.shape[:2]
            entry[tables.BLOCK_BYTES] = weight[0].nbytes
            for column, field in ((tables.START, "start"), (tables.SCALE, "scale"), (tables.BIAS, "bias")):
                if field in arrays:
                    entry[column] = arrays[field].ctypes.data
        return table

    def _norm_table(self) -> Longs:
        table = np.zeros((self._plan.num_layers, tables.NUM_NORMS), np.int64)
        for column, name in (
            (tables.INPUT_NORM, "input_norm"),
            (tables.POST_NORM, "post_norm"),
            (tables.Q_NORM, "q_norm"),
            (tables.K_NORM, "k_norm"),
        ):
            if name in self._tensors:
                table[:, column] = [weights.ctypes.data for weights in self._tensors[name]]
        return table

    def _make_scratch(self) -> Floats:
        """[thread, floats] scratch memory. Each thread's part begins with a block of ones and one of zeros."""
        size = scratch_floats(self._plan.group_size, self._limits.max_seq_len, self._plan.head_dim)
        scratch = aligned((self._crew.num_threads, -(-size // LANES) * LANES), np.float32)
        ones = scratch[:, : LANES * MAX_BLOCKS]
        if self._cache.keys.dtype == np.float32:
            ones[:] = 1
        else:
            ones.view(np.uint16)[:] = _BFLOAT16_ONE
        return scratch

    def _grow_buffers(self, num_rows: int) -> None:
        """Allocate buffers of at least num_rows rows."""
        self._num_kept = max(num_rows, min(2 * self._num_kept, self._limits.max_num_tokens))
        hidden = self._tensors["final_norm"].shape[-1]
        inner = -(-self._plan.intermediate_size // LANES) * LANES
        heads = -(-self._plan.num_heads * self._plan.head_dim // LANES) * LANES
        packed: type = np.uint8
        if self._plan.kind == "bfloat16":
            packed = np.uint16 if HAS_BF16 else np.float32
        widths = {
            tables.X: (hidden, np.float32),
            tables.H: (hidden, np.float32),
            tables.BYTES: (max(hidden, heads), packed),
            tables.ROW_SCALE: (1, np.float32),
            tables.QKV_OUT: (self._matrices[tables.QKV, tables.NUM_BLOCKS] * LANES, np.float32),
            tables.ATTENDED: (heads, np.float32),
            tables.GATE_UP_OUT: (self._matrices[tables.GATE_UP, tables.NUM_BLOCKS] * LANES, np.float32),
            tables.GATED: (inner, np.float32),
            tables.GATED_BYTES: (inner, packed),
        }
        self._kept = {place: aligned((self._num_kept, width), kind) for place, (width, kind) in widths.items()}
        for place, array in self._kept.items():
            self._table[place] = array.ctypes.data, array.strides[0]
        self._table[tables.ZEROS] = self._zeros.ctypes.data, 0

    def _embed(self, token_ids: npt.NDArray[np.int32]) -> None:
        """Copy rows of the embedding into the buffer X."""
        target = self._kept[tables.X][: len(token_ids)]
        if not self._plan.tied:
            target[:] = as_float32(self._tensors["embedding"][token_ids, : target.shape[1]])
            return
        weight = self._tensors["head.weight"]
        target[:] = as_float32(weight[token_ids // LANES, :, token_ids % LANES]).reshape(len(token_ids), -1)
        if self._plan.kind == "int8":
            target *= self._tensors["head.scale"][token_ids, None]


def _rotation(inverse_frequencies: Array, num_positions: int, scale: float) -> Floats:
    """[2, position, head_dim / 2] cosines and sines."""
    angles = np.arange(num_positions, dtype=np.float32)[:, None] * inverse_frequencies[None, :]
    result: Floats = np.stack([np.cos(angles), np.sin(angles)]) * np.float32(scale)
    return result
