"""A pass of a fixed number of rows as a CUDA graph: a recording of kernels that one call launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from pipeline.engine.torch.gpu.pass_table import NUM_FIELDS, NUM_TILE_FIELDS, SLOT, GpuPassTable

# Memory that recordings share: a result of `torch.cuda.graph_pool_handle`.
Pool = Any
# Results of a pass, from `rows`, `wanted` and `tiles` of its table on the device.
Run = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]
# The first passes compile kernels and choose algorithms, which a recording must not contain.
_NUM_WARM_UPS = 2


class PassGraph:
    """The recording of one pass. Its results are overwritten by the next pass of any recording with the same pool.

    num_rows, num_wanted: the most that a table may have."""

    def __init__(
        self, num_rows: int, num_wanted: int, num_tiles: int, run: Run, device: torch.device, pool: Pool | None
    ) -> None:
        """Record `run` with a table of no sequence. pool: memory that recordings share, of which only one runs at a
        time. None: nothing is recorded, as on a CPU, where tests interpret the kernels."""
        self.num_rows, self.num_wanted = num_rows, num_wanted
        shapes = ((num_rows, NUM_FIELDS), (num_wanted,), (num_tiles, NUM_TILE_FIELDS))
        self._staged = torch.zeros(sum(map(prod, shapes)), dtype=torch.int32, pin_memory=pool is not None)
        self._table = GpuPassTable(*(part.numpy() for part in _split(self._staged, shapes)))
        self._table.rows[:, SLOT] = -1
        self._given = self._staged.to(device, copy=True)
        self._inputs = _split(self._given, shapes)
        self._run = run
        self._graph: torch.cuda.CUDAGraph | None = None
        if pool is not None:
            self._record(pool)

    def run(self, table: GpuPassTable) -> tuple[torch.Tensor, ...]:
        """Start the pass over a table."""
        staged = self._table
        if self._graph is not None:
            self._copied.synchronize()  # a pass without wanted rows has not been waited for
        for target, source in ((staged.rows, table.rows), (staged.wanted, table.wanted), (staged.tiles, table.tiles)):
            target[: len(source)] = source
            target[len(source) :] = 0
        staged.rows[len(table.rows) :, SLOT] = -1
        self._given.copy_(self._staged, non_blocking=True)
        if self._graph is None:
            return self._run(*self._inputs)
        self._copied.record()
        self._graph.replay()
        return self._results

    def _record(self, pool: Pool) -> None:
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_NUM_WARM_UPS):
                self._run(*self._inputs)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._results = self._run(*self._inputs)


def _split(flat: torch.Tensor, shapes: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
    """Parts of a flat tensor, as views of the given shapes."""
    parts = flat.split_with_sizes([prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
