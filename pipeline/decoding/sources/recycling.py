"""Token recycling (arXiv 2408.08696): drafts from the candidates that earlier verify steps computed and discarded.

Every position that a step computes, on the accepted path or not, yields the target's most probable next tokens. A table
keeps them across the requests of a namespace, keyed by the last one, two and three tokens. The drafter grows its tree
from this table. Unlike the paper's, the table keeps probabilities, so the tree follows them and has no fixed shape.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pipeline.config.schema import LookaheadConfig, RecyclingDraftConfig
from pipeline.decoding.drafting.continuations import ContinuationTable, empty_table, namespace_key, store_step
from pipeline.decoding.drafting.first_rows import NO_FIRST_ROWS
from pipeline.decoding.drafting.learned_state import load_arrays, save_arrays
from pipeline.decoding.request import StepResult
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import EMPTY_TREE, DraftTree, IntArray

ORDERS = 3
CAPACITY = 1 << 16
STATE = "recycling.state"


class RecyclingSource:
    """Fills `table`, which the drafter reads; proposes nothing itself."""

    name = "recycling"

    def __init__(self, config: RecyclingDraftConfig, lookahead: LookaheadConfig | None = None) -> None:
        self.needs_top_k = config.top_k
        self.table: ContinuationTable = empty_table(ORDERS, CAPACITY, config.top_k)
        self.first_rows = NO_FIRST_ROWS
        self._keys: dict[str, np.uint64] = {}

    def start(self, request_id: str, prompt_ids: IntArray, namespace: str) -> None:
        self._keys[request_id] = namespace_key(namespace)

    def table_key(self, request_id: str) -> np.uint64 | None:
        """The key of the request's namespace; None for a request that was not started here."""
        return self._keys.get(request_id)

    def propose(self, request_id: str, context: IntArray, budget: DraftBudget) -> DraftTree:
        """Return no nodes: the drafter itself continues every path from `table`."""
        return EMPTY_TREE

    def update(self, request_id: str, step: StepResult) -> None:
        if step.top_ids is not None and step.top_probs is not None:
            tree, path = step.tree, np.asarray(step.nodes, np.int32)
            key, table = self._keys[request_id], tuple(self.table)
            store_step(table, key, step.context, tree.token_ids, tree.parents, path, step.top_ids, step.top_probs)

    def save_learned(self, folder: Path, fingerprint: str) -> None:
        save_arrays(folder / STATE, self.table._asdict(), fingerprint)

    def load_learned(self, folder: Path, fingerprint: str) -> None:
        path = folder / STATE
        if path.exists():
            self.table = ContinuationTable(**load_arrays(path, self.table._asdict(), fingerprint))

    def stop(self, request_id: str) -> None:
        self._keys.pop(request_id, None)
