"""Reliability of the estimates: predicted probability of verified nodes compared with their acceptance rate."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.decoding.compiled import compiled
from pipeline.decoding.drafting.reliability_row import ReliabilityRow
from pipeline.decoding.tree import DraftTree, FloatArray, IntArray

# Upper ends of the buckets of path probabilities; one more bucket ends at 1.
BUCKET_ENDS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
NUM_BUCKETS = len(BUCKET_ENDS) + 1


class Reliability:
    """Counts since the last `take`. Each node counts for the source that it is credited to."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        # nodes, promised, accepted
        self._sums = np.zeros((3, max(len(names), 1), NUM_BUCKETS))

    def add(self, tree: DraftTree, path: IntArray) -> None:
        """Count a verified tree. path: its accepted nodes. Trees without estimates or credits do not count, nor do the
        fixed nodes of a window, which are verified in any case."""
        if tree.probabilities is None or tree.sources is None or tree.num_fixed == len(tree):
            return
        _add(self._sums, tree.probabilities, tree.sources, path, tree.num_fixed)

    def take(self) -> list[ReliabilityRow]:
        """Return the non-empty buckets of each source, and reset the counts."""
        ends = (0.0, *BUCKET_ENDS, 1.0)
        rows = [
            ReliabilityRow(
                name,
                ends[bucket],
                ends[bucket + 1],
                round(self._sums[0, source, bucket]),
                float(self._sums[1, source, bucket]),
                round(self._sums[2, source, bucket]),
            )
            for source, name in enumerate(self._names)
            for bucket in range(NUM_BUCKETS)
            if self._sums[0, source, bucket]
        ]
        self._sums[:] = 0.0
        return rows


@compiled
def _add(sums: npt.NDArray[np.float64], promised: FloatArray, sources: IntArray, path: IntArray, first: int) -> None:
    num_passed = 0
    for node in range(first, len(promised)):
        while num_passed < len(path) and path[num_passed] < node:
            num_passed += 1
        if sources[node] < 0:  # forced by the grammar, without an estimate
            continue
        bucket = 0
        while bucket < len(BUCKET_ENDS) and BUCKET_ENDS[bucket] < promised[node]:
            bucket += 1
        sums[0, sources[node], bucket] += 1.0
        sums[1, sources[node], bucket] += promised[node]
        sums[2, sources[node], bucket] += num_passed < len(path) and path[num_passed] == node
