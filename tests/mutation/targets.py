"""The mutated modules, with the tests of each."""

from __future__ import annotations

from typing import NamedTuple


class Target(NamedTuple):
    """module: path of its source. tests: files or folders."""

    module: str
    tests: tuple[str, ...]


_DECODING, _ENGINE = "tests/unit/decoding", "tests/unit/engine"


def _trie(module: str, *tests: str) -> Target:
    return Target(f"pipeline/decoding/trie/{module}.py", tuple(f"{_DECODING}/trie/test_{name}.py" for name in tests))


_DRAFTS = ("estimator", "learning", "recorded")
_CONTENT = ("text_trie", "merging", "random_operations", "snapshot")
TARGETS = (
    Target("pipeline/decoding/accept.py", (f"{_DECODING}/test_accept.py",)),
    Target("pipeline/decoding/tree.py", (f"{_DECODING}/test_tree.py",)),
    Target("pipeline/decoding/growth.py", (f"{_DECODING}/test_growth.py",)),
    Target("pipeline/decoding/mixing.py", (f"{_DECODING}/test_mixing.py", f"{_DECODING}/test_growth.py")),
    Target("pipeline/decoding/planner.py", (f"{_DECODING}/test_planner.py",)),
    Target("pipeline/decoding/sampling.py", (f"{_DECODING}/test_sampling.py",)),
    Target("pipeline/decoding/cost.py", (f"{_DECODING}/test_cost.py",)),
    _trie("learning", "learning"),
    _trie("snapshot", "snapshot"),
    _trie("integrity", "snapshot", "random_operations"),
    *(_trie(module, *_DRAFTS) for module in ("draft_tree", "estimator", "next_tokens", "suffixes")),
    *(_trie(module, *_CONTENT) for module in ("arrays", "insertion", "merging", "nodes", "text_trie")),
    Target(
        "pipeline/engine/scheduler.py",
        tuple(f"{_ENGINE}/test_scheduler{name}.py" for name in ("_order", "_ends", "_queue", "_grammar")),
    ),
    Target(
        "pipeline/engine/waiting_queue.py", (f"{_ENGINE}/test_waiting_queue.py", f"{_ENGINE}/test_scheduler_queue.py")
    ),
    Target("pipeline/engine/cost_curve.py", (f"{_ENGINE}/test_cost_curve.py",)),
    Target("pipeline/triton_models/steps.py", ("tests/unit/triton_models/test_steps.py",)),
    Target("pipeline/backends/tensorrt_llm/readback.py", ("tests/unit/backends/tensorrt_llm/test_readback.py",)),
)
