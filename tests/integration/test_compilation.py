"""After setup no command compiles anything: neither drafting nor the CPU engine's pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pipeline.decoding.compile_cache import is_complete
from pipeline.engine.compilation import ensure_compiled

# In a process of its own, where no other test has compiled anything: loops compiled by requests after a warm-up.
COMPILED_LATER = """
import importlib, pkgutil, sys, tempfile
from pathlib import Path
import numpy as np
import pipeline.decoding
import pipeline.engine.torch.lean
from numba.core.dispatcher import Dispatcher
from pipeline.config.schema import (
    LookaheadConfig, PromptDraftConfig, RecyclingDraftConfig, SuppliedDraftConfig, TrieDraftConfig, WindowDraftConfig
)
from pipeline.decoding.drafting.drafter_factory import create_drafter
from pipeline.decoding.planning.planner import AdaptivePlanner, FixedPlanner
from pipeline.decoding.warm_up import warm_up
from pipeline.engine.torch.lean.warm_up import warm_up_pass
from pipeline.decoding.tree import tree_from_lists
from pipeline.engine.contract import VerifyItem
from pipeline.engine.submission import Submission
from tests.fakes import VOCAB_SIZE, cost_curve, make_request, make_scheduler
from tests.unit.engine.torch.lean.models import lean_engine, tiny_model

for package in (pipeline.decoding, pipeline.engine.torch.lean):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)

def loops():
    modules = [module for name, module in sys.modules.items() if name.startswith("pipeline.")]
    return {value for module in modules for value in vars(module).values() if isinstance(value, Dispatcher)}

def compiled():
    return {f"{loop.__name__} {signature}" for loop in loops() for signature in loop.signatures}

warm_up()
warm_up_pass()
before = compiled()
assert before
sources = [TrieDraftConfig(), PromptDraftConfig(), RecyclingDraftConfig(), WindowDraftConfig(), SuppliedDraftConfig()]
lookahead = LookaheadConfig.of(3, 3, 3)
for planner in (FixedPlanner(), AdaptivePlanner(cost_curve([(1, 1, 0, 0.1), (100, 1, 0, 0.2)]))):
    drafter = create_drafter(sources, lookahead, VOCAB_SIZE)
    scheduler = make_scheduler(drafter=drafter, planner=planner, budget=(16, 8), prefill_chunk=64)
    scheduler.run([Submission(make_request(namespace=name), "hybrid") for name in ("a", "b")])
    scheduler.run([Submission(make_request(np.random.default_rng(0).integers(0, VOCAB_SIZE, 120)), "trie")])
    drafter.require_sound()
for kind in ("float32", "bfloat16", "int8"):
    with tempfile.TemporaryDirectory() as folder:
        engine = lean_engine(tiny_model("qwen2"), kind, Path(folder), 2)
    first, second = engine.open(np.arange(5)), engine.open(np.arange(7, 12))
    tree = tree_from_lists([1, 2, 3], [-1, -1, 0])
    results = engine.verify([VerifyItem(first, tree), VerifyItem(second, pending_rows=True)])
    results[0].top_k(3)
    engine.commit(first, [0, 2], [1, 3, 4])
print(*sorted(compiled() - before), sep="\\n", end="")
# And the warm-up itself has found everything in the cache that the test has filled before.
print(*sorted(loop.__name__ for loop in loops() if sum(loop.stats.cache_misses.values())), sep="\\n", end="")
"""


def test_no_request_has_to_wait_for_a_loop_to_be_compiled() -> None:
    ensure_compiled(print)
    assert is_complete()
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", COMPILED_LATER], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
