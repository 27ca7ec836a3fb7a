"""Division of attention into tasks, and the scratch memory of a task."""

from __future__ import annotations

import numpy as np

from pipeline.engine.torch.lean.tables import Floats, aligned
from pipeline.engine.torch.lean.tiles import MAX_BLOCKS
from pipeline.engine.torch.lean.vectors import LANES, padded

# Most queries of one task: rows of a segment times the query heads of one key head.
_MAX_QUERIES = 24
# With at least this number of tasks per thread, an uneven distribution costs little.
_MANY_TASKS = 4


def max_task_rows(group: int) -> int:
    """Most rows of a segment in one task. group: query heads per key head."""
    return max(1, _MAX_QUERIES // group)


def task_rows(num_rows: int, group: int, num_kv_heads: int, num_threads: int) -> int:
    """Rows per task of a segment, chosen so that all threads have the same number of tasks, or at least `_MANY_TASKS`.
    A task has one key head."""
    parts = -(-num_rows // max_task_rows(group))
    while parts * num_kv_heads % num_threads and parts * num_kv_heads < _MANY_TASKS * num_threads and parts < num_rows:
        parts += 1
    return -(-num_rows // parts)


def num_ones(group: int, dim: int) -> int:
    """Ones at the start of a thread's scratch memory: at least one for each query of a task, and for each dim."""
    return max(padded(max_task_rows(group) * group), padded(dim))


def scratch_memory(num_threads: int, group: int, max_seq_len: int, dim: int) -> Floats:
    """[thread, floats] scratch memory: `num_ones` ones, a block of zeros, two numbers per query of a task, its queries,
    its results and its scores."""
    queries, ones = max_task_rows(group) * group, num_ones(group, dim)
    per_query = padded(max_seq_len) + 2 * padded(dim)
    size = ones + LANES * MAX_BLOCKS + 2 * padded(queries) + queries * per_query
    scratch = aligned((num_threads, padded(size)), np.float32)
    scratch[:, :ones] = 1
    return scratch
