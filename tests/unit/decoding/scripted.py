"""A scripted draft source, and drafters with such sources."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pipeline.decoding.drafting.drafter import Drafter
from pipeline.decoding.request import StepResult
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import DraftTree, IntArray

VOCAB = 50
CONTEXT = np.asarray([1, 2, 3], np.int32)
BUDGET = DraftBudget(8, 4)


class Scripted:
    """Proposes scripted drafts and records what it receives."""

    needs_top_k = 0

    def __init__(self, name: str, propose: Callable[[DraftBudget], DraftTree]) -> None:
        self.name = name
        self._propose = propose
        self.heard: list[StepResult] = []
        self.active: set[str] = set()

    def start(self, request_id: str, prompt_ids: IntArray, namespace: str) -> None:
        self.active.add(request_id)

    def propose(self, request_id: str, context: IntArray, budget: DraftBudget) -> DraftTree:
        return self._propose(budget)

    def update(self, request_id: str, step: StepResult) -> None:
        self.heard.append(step)

    def stop(self, request_id: str) -> None:
        self.active.discard(request_id)


def fail(budget: DraftBudget) -> DraftTree:
    raise RuntimeError("out of ideas")


def drafter_of(*sources: object) -> Drafter:
    drafter = Drafter(sources, VOCAB)  # type: ignore[arg-type]
    drafter.start("r", CONTEXT, "", frozenset(source.name for source in sources))  # type: ignore[attr-defined]
    return drafter


def step_of(tree: DraftTree, nodes: list[int], bonus: int = 0) -> StepResult:
    return StepResult(CONTEXT, tree, nodes, [*(int(tree.token_ids[node]) for node in nodes), bonus])


def paths_of(tree: DraftTree) -> set[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.token_ids.tolist(), tree.parents.tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    assert len(set(paths)) == len(paths)
    return set(paths)
