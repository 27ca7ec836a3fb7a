from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pipeline.decoding.compile_cache import ensure_compiled, is_complete
from pipeline.decoding.continuations import store_step
from pipeline.decoding.growth import grow, learn_from_step
from pipeline.decoding.warm_up import warm_up

# In a process of its own, where no other test has compiled anything: loops compiled by requests after a warm-up.
COMPILED_LATER = """
import importlib, pkgutil, sys
import numpy as np
import pipeline.decoding
from numba.core.dispatcher import Dispatcher
from pipeline.config.schema import (
    LookaheadConfig, PromptDraftConfig, RecyclingDraftConfig, SuppliedDraftConfig, TrieDraftConfig, WindowDraftConfig
)
from pipeline.decoding.create import create_drafter
from pipeline.decoding.planner import FixedPlanner
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.warm_up import warm_up
from pipeline.engine.scheduler import Scheduler
from pipeline.engine.submission import Submission
from tests.fakes import VOCAB_SIZE, TableEngine, make_request

for module in pkgutil.walk_packages(pipeline.decoding.__path__, "pipeline.decoding."):
    importlib.import_module(module.name)

def loops():
    modules = [module for name, module in sys.modules.items() if name.startswith("pipeline.")]
    return {value for module in modules for value in vars(module).values() if isinstance(value, Dispatcher)}

def compiled():
    return {f"{loop.__name__} {signature}" for loop in loops() for signature in loop.signatures}

warm_up()
before = compiled()
assert before
sources = [TrieDraftConfig(), PromptDraftConfig(), RecyclingDraftConfig(), WindowDraftConfig(), SuppliedDraftConfig()]
lookahead = LookaheadConfig(max_window_size=3, max_ngram_size=3, max_verification_set_size=3)
drafter = create_drafter(sources, lookahead, VOCAB_SIZE)
budget = DraftBudget(16, 8)
scheduler = Scheduler(
    TableEngine(), drafter, FixedPlanner(), default_budget=budget, max_queue_size=8, prefill_chunk=64
)
prediction = np.arange(8, dtype=np.int32)
scheduler.run([Submission(make_request(namespace=name), "hybrid", prediction=prediction) for name in ("a", "b")])
scheduler.run([Submission(make_request(np.random.default_rng(0).integers(0, VOCAB_SIZE, 120)), "trie")])
drafter.require_sound()
print(*sorted(compiled() - before), sep="\\n", end="")
# And the warm-up itself has found everything in the cache that the test has filled before.
print(*sorted(loop.__name__ for loop in loops() if sum(loop.stats.cache_misses.values())), sep="\\n", end="")
"""


def num_compiled() -> list[int]:
    return [len(loop.signatures) for loop in (grow, learn_from_step, store_step)]  # type: ignore[attr-defined]


def test_afterwards_the_loops_are_compiled_and_a_second_time_changes_nothing() -> None:
    warm_up()
    first = num_compiled()
    assert all(first)
    warm_up()
    assert num_compiled() == first


def test_no_request_has_to_wait_for_a_loop_to_be_compiled() -> None:
    ensure_compiled(print)
    assert is_complete()
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", COMPILED_LATER], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
