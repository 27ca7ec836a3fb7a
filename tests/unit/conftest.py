"""Several processes: the first one runs the tests that need torch, so that the others do not import it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

HERE = Path(__file__).parent
# Files and folders whose tests import torch or transformers, which takes 4 s of processor time. They are less than a
# third of all tests by time.
WITH_TORCH = (
    *("backends/tensorrt_llm/test_readback.py", "backends/tensorrt_llm/test_stages.py", "bench/contenders"),
    *("bench/report/test_results.py", "bench/test_bench.py", "bench/validation", "bench/verify", "checkpoint"),
    *("cli/test_bad_checkpoints.py", "cli/test_bench.py", "cli/test_cli.py", "cli/test_notebook.py"),
    *("cli/test_verify.py", "dynamo/test_card.py", "engine/test_artifact.py", "engine/test_build.py"),
    *("engine/test_create.py", "engine/test_first_rows.py", "engine/test_parallel.py", "engine/torch"),
    "research/test_bench_trie_command.py",
    *("research/test_perplexity_command.py", "research/test_replay_command.py", "research/test_trie_peers.py"),
    *("server/test_memory_fit.py", "triton_models/test_bls_refusals.py", "triton_models/test_text_codec.py"),
    *("triton_models/test_text_stream.py", "triton_models/test_text_tensors.py", "triton_models/test_token_output.py"),
    "tuning/test_planned_engine.py",
)


@functools.cache
def needs_torch(path: str) -> bool:
    """path: relative to the root of the checkout."""
    return any(Path(path).is_relative_to(Path("tests", "unit", name)) for name in WITH_TORCH)


def runs_all(config: pytest.Config) -> bool:
    return [Path(name).absolute() for name in config.args] == [HERE]


def is_without_torch(config: pytest.Config) -> bool:
    """Whether this process leaves the tests with torch to another one. A process that replaces a crashed one does not:
    its number is too high."""
    worker = getattr(config, "workerinput", None)
    return bool(worker) and runs_all(config) and 0 < int(worker["workerid"][2:]) < worker["workercount"]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    path = str(collection_path.relative_to(config.rootpath))
    return True if is_without_torch(config) and needs_torch(path) else None


@pytest.fixture(autouse=True, scope="module")
def _imports_no_torch(request: pytest.FixtureRequest) -> Iterator[None]:
    before = "torch" in sys.modules
    yield
    if is_without_torch(request.config):
        assert before or "torch" not in sys.modules, f"{request.path} belongs to WITH_TORCH"


class ByTorch(LoadScopeScheduling):
    """Gives files to processes that have collected them, those with torch first."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0]

    def _check_nodes_have_same_collection(self) -> bool:
        # The scheduler takes the first collection for that of all tests.
        longest_first = sorted(self.registered_collections.items(), key=lambda entry: -len(entry[1]))
        self.registered_collections = dict(longest_first)
        return True

    def add_node_collection(self, node: Any, collection: Any) -> None:
        self.registered_collections[node] = list(collection)

    def _assign_work_unit(self, node: Any) -> None:
        collected = frozenset(map(self._split_scope, self.registered_collections[node]))
        units = [unit for unit in self.workqueue if unit in collected]
        if units:
            self.workqueue.move_to_end(next(filter(needs_torch, units), units[0]), last=False)
            super()._assign_work_unit(node)
        else:
            node.shutdown()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByTorch | None:
    return ByTorch(config, log) if runs_all(config) else None
