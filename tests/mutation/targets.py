"""The mutated modules, with the tests of each, and their mutants."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.mutation.mutants import Mutant, mutants_of

EQUIVALENT = Path(__file__).with_name("equivalent.json")


class Target(NamedTuple):
    """module: path of its source. tests: files or folders."""

    module: str
    tests: tuple[str, ...]


_DECODING, _ENGINE, _TRITON = "tests/unit/decoding", "tests/unit/engine", "tests/unit/triton_models"


def _decoding(module: str, *tests: str, room: str = "") -> Target:
    """A module whose tests have its name, or these names. room: its folder, with a slash at the end."""
    names = tests or (module,)
    return Target(f"pipeline/decoding/{room}{module}.py", tuple(f"{_DECODING}/{room}test_{name}.py" for name in names))


_drafting, _planning = partial(_decoding, room="drafting/"), partial(_decoding, room="planning/")


def _trie(module: str, *tests: str) -> Target:
    return Target(f"pipeline/decoding/trie/{module}.py", tuple(f"{_DECODING}/trie/test_{name}.py" for name in tests))


_DRAFTS = ("estimator", "learning", "recorded")
_CONTENT = ("arrays", "namespaces", "text_trie", "random_operations", "merging", "snapshot")
TARGETS = (
    *map(_decoding, ("accept", "tree", "sampling", "lookahead", "noise", "pool", "split", "strategy")),
    *map(
        _drafting, ("growth", "learning", "recent_rows", "calibration", "continuations", "reliability", "learned_state")
    ),
    _planning("planner", "planner", "balance"),
    *map(_planning, ("cost", "balance", "cost_correction")),
    _decoding("sampling_checks", "sampling"),
    _drafting("mixing", "mixing", "drafter_recorded"),
    _drafting("nodes", "growth", "drafter_recorded"),
    Target(
        "pipeline/decoding/log_probs.py",
        (f"{_DECODING}/test_log_probs.py", f"{_ENGINE}/test_scheduler_log_probs.py", f"{_TRITON}/test_token_output.py"),
    ),
    Target(
        "pipeline/decoding/session.py",
        (
            f"{_DECODING}/test_session.py",
            f"{_DECODING}/test_session_ends.py",
            f"{_ENGINE}/test_scheduler_grammar.py",
        ),
    ),
    _drafting("drafter", "drafter", "drafter_faults", "drafter_recorded", "learned_state"),
    _drafting("proposals", "proposals", "drafter"),
    Target("pipeline/decoding/grammar/matcher.py", (f"{_DECODING}/grammar/test_matcher.py",)),
    _trie("learning", "learning", "recorded"),
    _trie("snapshot", "snapshot"),
    *(_trie(module, *_DRAFTS) for module in ("draft_tree", "estimator", "next_tokens", "suffixes")),
    *(_trie(module, *_CONTENT) for module in ("arrays", "insertion", "merging", "nodes", "text_trie")),
    Target(
        "pipeline/engine/scheduler.py",
        tuple(f"{_ENGINE}/test_scheduler{name}.py" for name in ("", "_order", "_ends", "_queue", "_grammar")),
    ),
    Target(
        "pipeline/engine/waiting_queue.py", (f"{_ENGINE}/test_waiting_queue.py", f"{_ENGINE}/test_scheduler_queue.py")
    ),
    Target("pipeline/engine/cost_curve.py", (f"{_ENGINE}/test_cost_curve.py",)),
    Target("pipeline/engine/pass_watch.py", (f"{_ENGINE}/test_pass_watch.py",)),
    *(
        Target(f"pipeline/triton_models/{name}.py", (f"{_TRITON}/test_call_planning.py",))
        for name in ("call_costs", "call_planning")
    ),
    *(
        Target(f"pipeline/triton_models/{name}.py", (f"{_TRITON}/test_{name}.py",))
        for name in ("fair_slots", "text_stream", "token_output")
    ),
    *(
        Target(f"pipeline/gateway/{name}.py", (f"tests/unit/gateway/test_{name}.py",))
        for name in ("resumption", "tenants")
    ),
    Target(
        "pipeline/dynamo/request_tensors.py",
        tuple(f"tests/unit/dynamo/test_{name}.py" for name in ("request_tensors", "servers", "engine")),
    ),
    Target("pipeline/backends/tensorrt_llm/readback.py", ("tests/unit/backends/tensorrt_llm/test_readback.py",)),
)


def candidates_of(target: Target) -> list[Mutant]:
    """All mutants of a module except those that are known to change nothing. Raises ValueError if one of these does not
    exist any more."""
    mutants = mutants_of(Path(target.module).read_text(encoding="utf-8"))
    equivalent = json.loads(EQUIVALENT.read_text(encoding="utf-8")).get(target.module, {})
    if gone := equivalent.keys() - {mutant.name for mutant in mutants}:
        raise ValueError(f"{EQUIVALENT.name}: {target.module} has no longer the mutants {sorted(gone)}")
    return [mutant for mutant in mutants if mutant.name not in equivalent]
