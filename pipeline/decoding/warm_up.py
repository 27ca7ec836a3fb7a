"""Compiles the hot loops before the first request, or loads their machine code from `compile_cache`, which takes well
under a second."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from pipeline.config.schema import LookaheadConfig, RecyclingDraftConfig, TrieDraftConfig, WindowDraftConfig
from pipeline.decoding.drafting.drafter_factory import create_drafter
from pipeline.decoding.planning.cost import CostCurve, CostPoint
from pipeline.decoding.planning.planner import AdaptivePlanner, FixedPlanner, PlanItem
from pipeline.decoding.request import StepResult
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.trie import Trie
from pipeline.decoding.trie.snapshot import load_trie, save_trie
from pipeline.decoding.trie.text_trie import FIRST_NODES

VOCAB_SIZE = 32
REQUESTS = ("warm-up 1", "warm-up 2")


def warm_up() -> None:
    """Call every compiled loop: run a few steps of a throwaway drafter for two requests at once, and let a trie grow,
    prune, be saved and loaded."""
    lookahead = LookaheadConfig.of(2, 3, 2)
    configs = (TrieDraftConfig(max_bytes=1 << 16), RecyclingDraftConfig(top_k=2), WindowDraftConfig())
    drafter = create_drafter(configs, lookahead, VOCAB_SIZE)
    text = np.tile(np.arange(8, dtype=np.int32), 4)
    names = frozenset(source.name for source in drafter.sources)
    for request_id in REQUESTS:
        drafter.start(request_id, text[:16], "", names)
    for length in range(16, 20):
        for request_id in REQUESTS:
            tree = drafter.propose(request_id, text[:length], DraftBudget(8, 4))
            item = PlanItem(tree, 1, length)
            AdaptivePlanner(CostCurve((CostPoint(1, 1, 0, 1.0),))).plan([item], len(tree))
            (verified,) = FixedPlanner().plan([item], len(tree))  # no room for the last node
            top_ids = np.tile(np.asarray([1, 2], np.int32), (len(verified) + 1, 1))
            top_probs = np.full(top_ids.shape, 0.4, np.float32)
            drafter.update(
                request_id,
                StepResult(text[:length], verified, [], [int(text[length])], top_ids[:, 0].copy(), top_ids, top_probs),
            )
    for request_id in REQUESTS:
        drafter.stop(request_id)
    drafter.require_sound()
    trie = Trie(12)
    trie.insert(np.arange(2 * FIRST_NODES, dtype=np.int32))
    trie.prune()
    with TemporaryDirectory() as folder:
        save_trie(trie, Path(folder) / "trie")
        load_trie(Path(folder) / "trie")
    trie.remove("")
