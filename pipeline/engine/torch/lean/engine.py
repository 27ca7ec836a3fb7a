"""The engine contract over the lean pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.decoding.compile_cache import is_complete
from pipeline.decoding.tree import IntArray
from pipeline.engine.contract import EngineLimits
from pipeline.engine.memory import slots_for
from pipeline.engine.torch.lean import amx, tables
from pipeline.engine.torch.lean.attention_tasks import num_ones, scratch_memory
from pipeline.engine.torch.lean.forward import num_counters, run_pass
from pipeline.engine.torch.lean.kv_cache import LeanCache
from pipeline.engine.torch.lean.node_logits import LeanLogits
from pipeline.engine.torch.lean.pass_table import LeanPassTable, table_of
from pipeline.engine.torch.lean.plan import Kind, LeanPlan
from pipeline.engine.torch.lean.tables import Array, Longs, aligned
from pipeline.engine.torch.lean.thread_team import COUNTER_BYTES, ThreadTeam
from pipeline.engine.torch.lean.tile_steps import USES_BF16
from pipeline.engine.torch.lean.vectors import LANES, padded
from pipeline.engine.torch.lean.warm_up import warm_up_pass
from pipeline.engine.torch.slots import Segment, SlotEngine

_KINDS: dict[Kind, int] = {"float32": tables.FLOAT32, "bfloat16": tables.BFLOAT16, "int8": tables.INT8}


class LeanEngine(SlotEngine):
    """Implements `pipeline.engine.contract.Engine`. The bits of a row do not depend on other rows of the pass."""

    def __init__(self, plan: LeanPlan, tensors: Mapping[str, Array], limits: EngineLimits, num_threads: int) -> None:
        """plan, tensors: from the files of `layout.save_lean`. Raises BuildError if the KV cache does not fit into
        memory."""
        self._plan, self._tensors = plan, tensors
        num_slots = slots_for(limits.max_batch_size)
        self._cache = LeanCache(plan, num_slots, limits.max_seq_len)
        super().__init__(limits, self._cache, num_slots)
        if num_threads > 1 and not is_complete():
            warm_up_pass()  # in one thread: numba fails if several threads compile a loop at its first call
        self._team = ThreadTeam(num_threads)
        self._matrices = tables.matrix_table(tensors, plan.num_layers)
        self._norms = tables.norm_table(tensors, plan.num_layers)
        self._embedding = tables.embedding_table(tensors, _KINDS[plan.kind])
        self._windows = np.asarray(plan.windows, np.int64)
        frequencies = tensors["inverse_frequencies"][: plan.head_dim // 2]
        self._rotation = tables.rotation_table(frequencies, limits.max_seq_len, plan.rotary_scale)
        self._zeros = aligned((self._matrices[:, tables.NUM_BLOCKS].max() * LANES,), np.float32)
        self._scratch = scratch_memory(num_threads, plan.group_size, limits.max_seq_len, plan.head_dim)
        self._counters = aligned((num_counters(plan.num_layers) * COUNTER_BYTES // 8,), np.int64)
        self._sizes = np.zeros(tables.NUM_SIZES, np.int64)
        self._sizes[: tables.NUM_ROWS] = (
            _KINDS[plan.kind],
            num_threads,
            plan.num_layers,
            plan.hidden_size,
            plan.num_heads,
            plan.num_kv_heads,
            plan.head_dim,
            plan.intermediate_size,
            num_ones(plan.group_size, plan.head_dim),
            tensors["final_norm"].ctypes.data,
            plan.kind == "int8" and amx.is_permitted(),
        )
        # Buffers of at least _num_kept rows, kept between passes, and the table of their addresses and bytes per row.
        self._kept: dict[int, Array] = {}
        self._num_kept = 0
        self._buffers = np.zeros((tables.NONE + 1, 2), np.int64)

    def _compute(self, segments: Sequence[Segment], wanted: IntArray, num_top: int) -> LeanLogits:
        plan = self._plan
        table = table_of(segments, plan.group_size, plan.num_kv_heads, self._team.num_threads)
        return self._run(table, wanted.astype(np.int64), num_top)

    def multiply(self, num_rows: int) -> None:
        """Compute only the matrices of a pass over `num_rows` rows and all their logits, for measurements."""
        none = np.zeros((0, tables.NUM_ROW_FIELDS), np.int64)
        self._run(LeanPassTable(np.zeros(num_rows, np.int32), none, none), np.arange(num_rows), 0, matrices_only=True)

    def _run(self, table: LeanPassTable, wanted: Longs, num_top: int, matrices_only: bool = False) -> LeanLogits:
        """Run one pass. wanted: rows whose logits are computed. num_top: most probable entries per row to find."""
        num_rows = len(table.token_ids)
        if num_rows > self._num_kept:
            self._grow_buffers(num_rows)
        width = int(self._matrices[-1, tables.NUM_BLOCKS]) * LANES
        result = LeanLogits(len(wanted), width, num_top, self.limits.vocab_size)
        self._sizes[tables.NUM_ROWS :] = num_rows, len(wanted), matrices_only
        self._counters[:] = 0
        model = self._plan.epsilon, self._matrices, self._norms, self._windows, self._embedding
        context = self._rotation, self._cache.table
        results = result.logits, result.maxima, result.choices, result.ids, result.probabilities
        arguments = (self._sizes, *model, self._buffers, *context, *table, wanted, *results, self._scratch)
        self._team.run(lambda thread, handle: run_pass(thread, handle, *arguments, self._counters))
        return result

    def _grow_buffers(self, num_rows: int) -> None:
        """Allocate buffers of at least num_rows rows."""
        num_kept = max(num_rows, min(2 * self._num_kept, self.limits.max_num_tokens))
        self._num_kept = -(-num_kept // amx.ROWS) * amx.ROWS
        hidden = self._tensors["final_norm"].shape[-1]
        inner = padded(self._plan.intermediate_size)
        heads = padded(self._plan.num_heads * self._plan.head_dim)
        packed: type = np.uint8
        if self._plan.kind == "bfloat16":
            packed = np.uint16 if USES_BF16 else np.float32
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
            self._buffers[place] = array.ctypes.data, array.strides[0]
        self._buffers[tables.ZEROS] = self._zeros.ctypes.data, 0
