"""Trees of trie, recycling and prompt together, recorded over requests to a made-up target.

They show whether a change that should keep all drafts does so: in growth, mixing, calibration or the table. After a
change that should not, `python -m tests.unit.decoding.drafting.test_drafter_recorded` records them again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.config.schema import LookaheadConfig, RecyclingDraftConfig, TrieDraftConfig
from pipeline.decoding.drafting.drafter_factory import create_drafter
from pipeline.decoding.drafting.first_rows import FirstRows
from pipeline.decoding.request import StepResult
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import DraftTree, agreeing_path, path_to

RECORDED = Path(__file__).with_name("recorded_drafter.json")
VOCAB, TOP_K = 40, 4
NUM_REQUESTS, NUM_TOKENS = 6, 60
# Every how many steps a tree is recorded.
INTERVAL = 4


def target(context: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The best tokens after a context and their probabilities, which depend on its last two tokens and its length."""
    weights = np.random.default_rng([*context[-2:], len(context) % 3]).random(VOCAB) ** 12
    best = np.argsort(-weights)[:TOP_K]
    return best.astype(np.int32), (weights[best] / weights.sum()).astype(np.float32)


def trees() -> Iterator[DraftTree]:
    """The trees of all steps of all requests, one after the other, through one drafter."""
    sources = [TrieDraftConfig(max_bytes=1 << 16, branch_length=6), RecyclingDraftConfig(top_k=TOP_K)]
    drafter = create_drafter(sources, LookaheadConfig.of(1, 1, 0), VOCAB)
    rows = [target([0, token, 0]) for token in range(VOCAB)]
    drafter.begin_with(FirstRows(np.stack([ids for ids, _ in rows]), np.stack([probs for _, probs in rows])))
    for number in range(NUM_REQUESTS):
        text = [number % 3, 1, 2]
        drafter.start("r", np.asarray(text, np.int32), "", frozenset(drafter.names))
        while len(text) < NUM_TOKENS:
            context = np.asarray(text, np.int32)
            tree = drafter.propose("r", context, DraftBudget(16, 5))
            yield tree
            future = list(text)
            for _ in range(6):
                future.append(int(target(future)[0][0]))
            nodes = agreeing_path(tree, future[len(text) : -1])
            emitted = future[len(text) : len(text) + len(nodes) + 1]
            after = [target(text + tree.token_ids[path_to(tree, node)].tolist()) for node in range(-1, len(tree))]
            ids, probs = np.stack([ids for ids, _ in after]), np.stack([probs for _, probs in after])
            drafter.update("r", StepResult(context, tree, nodes, emitted, None, ids, probs))
            text += emitted
        drafter.stop("r")
    drafter.require_sound()


def recordable() -> list[dict[str, Any]]:
    return [
        {
            "token_ids": tree.token_ids.tolist(),
            "parents": tree.parents.tolist(),
            "sources": tree.sources.tolist(),
            "probabilities": [float(f"{value:.5g}") for value in tree.probabilities],
        }
        for number, tree in enumerate(trees())
        if number % INTERVAL == 0 and tree.sources is not None and tree.probabilities is not None
    ]


def test_the_recorded_trees_are_grown_again() -> None:
    found, expected = recordable(), json.loads(RECORDED.read_text(encoding="utf-8"))
    assert len(found) == len(expected)
    for number, (tree, recorded) in enumerate(zip(found, expected, strict=True)):
        probabilities = tree.pop("probabilities"), recorded.pop("probabilities")
        assert tree == recorded, number
        assert probabilities[0] == pytest.approx(probabilities[1], rel=1e-3), number


if __name__ == "__main__":
    RECORDED.write_text("[\n" + ",\n".join(json.dumps(tree) for tree in recordable()) + "\n]\n", encoding="utf-8")
