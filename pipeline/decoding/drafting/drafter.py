"""Combines all draft sources: collects their proposals, grows one tree, and passes the outcome to each source.

The failure of a source costs speed only. A source fails if it raises, or if its proposal is no tree, exceeds the budget
or leaves the vocabulary. Failures are counted, the first of a source is logged, and the step continues without it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pipeline.decoding.drafting.calibration import first_calibration
from pipeline.decoding.drafting.continuations import empty_table
from pipeline.decoding.drafting.first_rows import NO_FIRST_ROWS, FirstRows
from pipeline.decoding.drafting.growth import Grown, grow
from pipeline.decoding.drafting.learned_state import STATE, load_arrays, save_arrays
from pipeline.decoding.drafting.learning import learn_from_step
from pipeline.decoding.drafting.mixing import first_mix
from pipeline.decoding.drafting.nodes import Nodes, new_nodes
from pipeline.decoding.drafting.proposals import add_tree
from pipeline.decoding.drafting.recent_rows import NO_RECENT_ROWS, RecentRows, recent_rows
from pipeline.decoding.drafting.reliability import Reliability
from pipeline.decoding.noise import NO_NOISE, NoiseKey
from pipeline.decoding.request import StepResult
from pipeline.decoding.sources.base import DraftBudget, DraftSource
from pipeline.decoding.sources.recycling import RecyclingSource
from pipeline.decoding.tree import EMPTY_TREE, DraftTree, IntArray, read_only
from pipeline.errors import UserError

P = ParamSpec("P")

NO_TABLE = empty_table(0, 1, 1)
logger = logging.getLogger(__name__)


@runtime_checkable
class LearningSource(DraftSource, Protocol):
    """A source whose learned state can be saved: see `learned_state`."""

    def save_learned(self, folder: Path, fingerprint: str) -> None:
        """Write the learned state into a folder. fingerprint: of the model and its tokenizer. Raises UserError if the
        state cannot be written."""

    def load_learned(self, folder: Path, fingerprint: str) -> None:
        """Load the saved state, if there is any. Raises UserError if it cannot be used."""


@dataclass(slots=True)
class _DraftingState:
    """sources: those that take part. noise: of the target's choices. left_out: names of those that do not take part in
    the next proposal. recent: of the last step. grown: the last proposal, until its outcome is known."""

    sources: tuple[DraftSource, ...]
    noise: NoiseKey = NO_NOISE
    left_out: frozenset[str] = frozenset()
    recent: RecentRows = NO_RECENT_ROWS
    grown: Grown | None = None


class Drafter:
    """Queries the sources of a request and passes the outcome back to them. Not thread safe."""

    def __init__(self, sources: Sequence[DraftSource], vocab_size: int) -> None:
        names = [source.name for source in sources]
        if len(set(names)) != len(names):
            raise ValueError(f"draft sources must have different names, found {names}")
        self.sources = tuple(sources)
        self.names = tuple(names)
        self.failures: dict[str, int] = dict.fromkeys(names, 0)
        self.reliability = Reliability(self.names)
        self._vocab_size = vocab_size
        self._requests: dict[str, _DraftingState] = {}
        self._recycling = next((source for source in self.sources if isinstance(source, RecyclingSource)), None)
        num_orders = 0 if self._recycling is None else len(self._recycling.table.keys)
        self._mix = first_mix(len(sources), num_orders)
        # The channels that name nodes are the sources, then the orders of the table and the first rows, which are
        # credited to recycling.
        num_naming = len(sources) + num_orders + 1
        self._calibration = first_calibration(num_naming)
        self._channel_sources = np.arange(num_naming, dtype=np.int32)
        if self._recycling is not None:
            self._channel_sources[len(sources) :] = self.sources.index(self._recycling)

    def begin_with(self, rows: FirstRows) -> None:
        """Set the first rows of token recycling, if it is one of the sources."""
        if self._recycling is not None:
            self._recycling.first_rows = rows

    def require_sound(self) -> None:
        """Raise RuntimeError if a source has failed, for callers that depend on every source."""
        failed = [f"{name} ({count} calls)" for name, count in self.failures.items() if count]
        if failed:
            raise RuntimeError(f"draft sources failed: {', '.join(failed)}; see the log for the reason")

    def start(
        self,
        request_id: str,
        prompt_ids: IntArray,
        namespace: str,
        names: frozenset[str],
        noise: NoiseKey = NO_NOISE,
    ) -> None:
        """Register a request. names: the sources that take part; names without a source are ignored. noise: with which
        the target chooses its tokens, if that is known."""
        sources = tuple(source for source in self.sources if source.name in names)
        self._requests[request_id] = _DraftingState(sources, noise)
        prompt_ids = read_only(prompt_ids)
        for source in sources:
            self._guarded(source, source.start, request_id, prompt_ids, namespace)

    def leave_out(self, request_id: str, names: frozenset[str]) -> None:
        """Make the next proposal without these sources."""
        self._requests[request_id].left_out = names

    def needs_top_k(self, request_id: str) -> int:
        """Number of the target's most probable tokens per node that `update` needs for this request."""
        wanted = max((source.needs_top_k for source in self._requests[request_id].sources), default=0)
        return min(max(wanted, 0), self._vocab_size)

    def propose(self, request_id: str, context: IntArray, budget: DraftBudget) -> DraftTree:
        """Grow one tree within the budget from the proposals of the request's sources."""
        request = self._requests[request_id]
        request.grown = None
        if budget.max_nodes <= 0 or budget.max_depth <= 0:
            return EMPTY_TREE
        context = read_only(context)
        table, key, first_rows = NO_TABLE, np.uint64(0), NO_FIRST_ROWS
        recycling = self._recycling
        if recycling is not None and (own := recycling.table_key(request_id)) is not None:
            table, key, first_rows = recycling.table, own, recycling.first_rows
        num_listed = table.ids.shape[0] * table.ids.shape[2] + first_rows.ids.shape[1]
        room = 1 + budget.max_nodes * (len(self.sources) + num_listed)
        nodes = new_nodes(room, self._mix.weights.shape[1] - 1)
        left_out, request.left_out = request.left_out, frozenset()
        for source in request.sources:
            if source is not recycling and source.name not in left_out:
                self._guarded(source, self._add_proposal, source, request_id, context, budget, nodes)
        fields = grow(
            context,
            tuple(nodes),
            tuple(table),
            key,
            tuple(first_rows),
            tuple(request.recent),
            len(self.sources),
            tuple(self._mix),
            tuple(self._calibration),
            self._channel_sources,
            tuple(request.noise),
            budget.max_nodes,
            budget.max_depth,
            budget.least_probability,
            self._vocab_size,
        )
        grown = request.grown = Grown(*fields)
        return DraftTree(grown.token_ids, grown.parents, grown.probabilities, grown.sources, grown.num_fixed)

    def update(self, request_id: str, step: StepResult) -> None:
        """Update the sources, and the weights that combine them, with the result of a step."""
        request = self._requests[request_id]
        path = np.asarray(step.nodes, np.int32)
        # All sources get the same result, so none may change it.
        nodes, tokens = tuple(step.nodes), tuple(step.token_ids)
        step = StepResult(read_only(step.context), step.tree, nodes, tokens, step.choices, step.top_ids, step.top_probs)
        self.reliability.add(step.tree, path)
        if request.grown is not None:
            learn_from_step(self._mix, self._calibration, request.grown, step, path)
        for source in request.sources:
            self._guarded(source, source.update, request_id, step)
        request.grown = None
        request.recent = recent_rows(step, path)

    def save_learned(self, folder: Path, name: str, fingerprint: str) -> None:
        """Write the learned state into a folder, which drafters of other names may share. Logs write errors."""
        for source in self.sources:
            if isinstance(source, LearningSource):
                self._guarded(source, _reported, source.save_learned, folder, fingerprint)
        _reported(save_arrays, folder / f"{name}{STATE}", self._learned(), fingerprint)

    def load_learned(self, folder: Path, name: str, fingerprint: str) -> None:
        """Load the files of `save_learned`, before the first request. Logs and ignores unusable files."""
        for source in self.sources:
            if isinstance(source, LearningSource):
                self._guarded(source, _reported, source.load_learned, folder, fingerprint)
        path = folder / f"{name}{STATE}"
        if path.exists():
            _reported(self._load_mix, path, fingerprint)

    def _load_mix(self, path: Path, fingerprint: str) -> None:
        for key, values in load_arrays(path, self._learned(), fingerprint).items():
            self._learned()[key][...] = values

    def _learned(self) -> dict[str, NDArray[Any]]:
        """The learned state of the drafter itself."""
        calibration = self._calibration
        return {"mix": self._mix.weights, "promised": calibration.promised, "accepted": calibration.accepted}

    def stop(self, request_id: str) -> None:
        """Drop a request and its state in all sources. Calling it again does nothing."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            for source in request.sources:
                self._guarded(source, source.stop, request_id)

    def _add_proposal(
        self, source: DraftSource, request_id: str, context: IntArray, budget: DraftBudget, nodes: Nodes
    ) -> None:
        tree = source.propose(request_id, context, budget)
        if len(tree):
            add_tree(nodes, self.sources.index(source), tree, budget, self._vocab_size)

    def _guarded(self, source: DraftSource, call: Callable[P, None], *args: P.args, **named: P.kwargs) -> None:
        """Call a source. Counts a failure, and logs the first one."""
        try:
            call(*args, **named)
        except Exception:
            self.failures[source.name] += 1
            if self.failures[source.name] == 1:
                logger.exception(
                    "draft source %r failed; it is left out of this step, and not reported again", source.name
                )


def _reported(call: Callable[P, None], *args: P.args, **named: P.kwargs) -> None:
    """Call a function that reads or writes learned state. Logs the sentence of a file that it cannot use."""
    try:
        call(*args, **named)
    except UserError as error:
        logger.warning("%s", error)
