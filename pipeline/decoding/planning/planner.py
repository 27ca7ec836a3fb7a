"""Selects the nodes of all sequences' draft trees that the next pass verifies.

A pass over a batch is expected to yield one token per sequence plus the sum of the path probabilities of all verified
draft nodes. The measured `CostCurve` gives its time. The planner takes nodes from the trees of all sequences together,
most probable first, and stops where expected tokens per second are highest. So trees are large while a pass has spare
capacity, small under load, and empty when drafts do not pay. The time of prompts in a pass does not count, because it
is the same for every plan.

The times of earlier passes correct the curve (see `cost_correction`). They also decide whether sequences draft at all,
because the time of drafting is spent before a plan is made (see `balance`). A plan does not explore: sources learn from
all emitted text, drafted or not, and passes with spare capacity verify even improbable nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.decoding.compiled import Plain, compiled
from pipeline.decoding.planning.balance import DraftBalance
from pipeline.decoding.planning.cost import CostCurve, Times
from pipeline.decoding.planning.cost_correction import CostCorrection
from pipeline.decoding.tree import EMPTY_TREE, BoolArray, DraftTree, FloatArray, IntArray, select_nodes

# Passes of up to this number of draft nodes determine the least probability.
_MOST_NODES = 32
# Factor on the mean probability that drafts need to pay. It is below 1, because a plan may hold nodes below the mean,
# and estimates are corrected after a tree has grown.
_LEAST_SHARE = 0.2


class PlanItem(NamedTuple):
    """One sequence of the next pass. tree: its drafts. num_pending: tokens computed in any case. context_len: cached
    tokens. yields_token: False for a part of a prompt before its end, which yields no token. names: the draft sources
    whose time counts, empty for none. draft_seconds: time of drafting since the last pass; None if it did not draft."""

    tree: DraftTree
    num_pending: int
    context_len: int
    yields_token: bool = True
    names: frozenset[str] = frozenset()
    draft_seconds: float | None = None


class FixedPlanner:
    """Selects all nodes, or the most probable ones of all sequences if the pass cannot hold all."""

    least_probability = 0.0

    def drafting_pays(self, names: frozenset[str]) -> bool:
        return True

    def plan(self, items: Sequence[PlanItem], max_num_tokens: int) -> list[DraftTree]:
        room = max_num_tokens - sum(item.num_pending for item in items)
        if sum(len(item.tree) for item in items) <= room:
            return [item.tree for item in items]
        nodes = _nodes_of(items, room)
        keep = np.zeros(len(nodes[1]), np.bool_)
        order = _order(*nodes, True, keep)
        keep[order[: max(room - np.count_nonzero(keep), 0)]] = True
        return _trees(items, keep)

    def record(self, seconds: float) -> None:
        pass


class AdaptivePlanner:
    """Selects the number of nodes with the most expected tokens per second."""

    def __init__(self, curve: CostCurve, always_drafts: bool = False) -> None:
        """always_drafts: for checks of outputs. Draft also where it takes longer than drafts save, and ignore the times
        of passes, so that a plan depends on its items alone."""
        # See `DraftBudget`, for the next pass.
        self.least_probability = 0.0
        self._curve = curve
        self._always_drafts = always_drafts
        self._balances: defaultdict[frozenset[str], DraftBalance] = defaultdict(DraftBalance)
        self._correction = CostCorrection()
        # Times by the curve, of the planned pass and without its drafts. None if its time cannot correct the curve.
        self._planned: Sequence[float] | None = None

    def drafting_pays(self, names: frozenset[str]) -> bool:
        """Whether sequences with these draft sources draft in the next pass."""
        return self._always_drafts or self._balances[names].pays

    def plan(self, items: Sequence[PlanItem], max_num_tokens: int) -> list[DraftTree]:
        """One tree per item, a subtree of the item's own. max_num_tokens: limit of the pass, including pending
        tokens."""
        self._planned = None
        if all(item.draft_seconds is None and not len(item.tree) for item in items):
            for names in _counted(items):
                self._balances[names].wait()
            return [EMPTY_TREE] * len(items)
        pending = sum([item.num_pending for item in items])
        room = max_num_tokens - pending
        num_nodes = max(min(room, sum([len(item.tree) for item in items])), 0)
        context_len = round(sum([item.context_len for item in items]) / len(items))
        certain = sum([item.yields_token for item in items])
        times = self._curve.seconds_up_to(pending + max(num_nodes, _MOST_NODES), len(items), context_len)
        factors = (1.0, 1.0) if self._always_drafts else self._correction.factors
        keep, expected, mean_that_pays, *by_curve, plain_seconds, additional = _best_plan(
            *_nodes_of(items, room), certain, pending, num_nodes, times, *factors
        )
        trees = _trees(items, keep)
        if not self._always_drafts:
            self.least_probability = _LEAST_SHARE * mean_that_pays
            if pending == certain:  # without prompts
                self._planned = by_curve
        num_sent = sum(map(len, trees))
        for names in _counted(items):
            own = [index for index, item in enumerate(items) if item.names == names]
            seconds = [time for index in own if (time := items[index].draft_seconds) is not None]
            if seconds:
                share = sum(len(trees[index]) for index in own) / max(num_sent, 1)
                saved = sum(float(expected[index]) for index in own) / certain - additional * share
                self._balances[names].add(saved, seconds, plain_seconds)
            else:
                self._balances[names].wait()
        return trees

    def record(self, seconds: float) -> None:
        """Record how long the pass of the last plan took."""
        if self._planned is not None:
            expected, plain = self._planned
            self._correction.record(expected / plain - 1, seconds / plain)


Planner = FixedPlanner | AdaptivePlanner


def _counted(items: Sequence[PlanItem]) -> set[frozenset[str]]:
    """The sets of draft sources whose drafting time is balanced against what drafts save."""
    return {item.names for item in items if item.names}


def _nodes_of(items: Sequence[PlanItem], room: int) -> tuple[FloatArray, IntArray, NDArray[np.int64]]:
    """The nodes of all trees, concatenated: path probabilities, and parents within each tree. Third, for each item the
    number of its nodes, of its fixed nodes, and whether these fit into the room left by those of earlier items."""
    probabilities = [
        np.zeros(len(item.tree), np.float32) if item.tree.probabilities is None else item.tree.probabilities
        for item in items
    ]
    sizes: list[tuple[int, int, bool]] = []
    for item in items:
        fits = item.tree.num_fixed <= room
        room -= item.tree.num_fixed if fits else 0
        sizes.append((len(item.tree), item.tree.num_fixed, fits))
    parents = np.concatenate([item.tree.parents for item in items], dtype=np.int32)
    return np.concatenate(probabilities, dtype=np.float32), parents, np.asarray(sizes, np.int64)


@compiled
def _best_plan(
    probabilities: FloatArray,
    parents: IntArray,
    sizes: NDArray[np.int64],
    certain: int,
    pending: int,
    num_nodes: int,
    times: Times,
    base: float,
    slope: float,
) -> Plain:
    """The plan with the highest expected number of tokens per second. Returns: [n] whether a node is verified; [items]
    the sum of the path probabilities of each item's verified nodes; `_mean_that_pays`; by the cost curve, the time of
    the pass and of one without drafts; the corrected time of one without drafts, and the part of it that drafts add.

    certain: tokens of a pass without drafts. pending: tokens computed in any case. num_nodes: most nodes of the pass.
    times: of passes of 0, 1, ... tokens. base, slope: see `cost_correction`. Other arguments: see `_nodes_of`."""
    # Times of passes with 0, 1, 2 ... nodes, as if they held decoding steps only: the time of prompts is spent in any
    # case, and an accepted draft saves a decoding step.
    curve = times[pending:] - times[pending] + times[max(certain, 1)]
    real = base * curve[0] + slope * (curve - curve[0])
    keep = _best_nodes(probabilities, parents, sizes, certain, real[: num_nodes + 1])
    expected = np.zeros(len(sizes))
    node = 0
    for index in range(len(sizes)):
        for _ in range(sizes[index, 0]):
            expected[index] += probabilities[node] if keep[node] else 0.0
            node += 1
    num_sent = np.count_nonzero(keep)
    mean = _mean_that_pays(certain, curve, real)
    return keep, expected, mean, curve[num_sent], curve[0], real[0], real[num_sent] / real[0] - 1.0


@compiled
def _mean_that_pays(certain: int, curve: Times, times: Times) -> float:
    """The least mean path probability at which any number of nodes yields as many tokens per second as a pass without
    drafts. curve, times: times of passes with 0, 1, ... nodes, by the cost curve and corrected.

    The lower cost of both decides. With corrected times alone, nodes that once seemed expensive would never be in a
    pass again whose time could correct that."""
    cheapest = np.inf
    for count in range(1, len(times)):
        additional = min(curve[count] / curve[0], times[count] / times[0]) - 1.0
        cheapest = min(cheapest, additional / count)
    return float(certain * cheapest)


@compiled
def _best_nodes(
    probabilities: FloatArray, parents: IntArray, sizes: NDArray[np.int64], certain: int, times: Times
) -> BoolArray:
    """[n] whether a node is verified, for the highest expected number of tokens per second. certain: tokens of a pass
    without drafts. times: of passes with 0, 1, ... nodes. For the other arguments see `_nodes_of`.

    A window yields tokens only in later steps, through its n-grams. It is kept only if the other nodes of this step pay
    for its time; if not, they are planned without it."""
    plain = certain / times[0]
    keep = np.zeros(len(parents), np.bool_)
    for keeps_windows in (True, False):
        order = _order(probabilities, parents, sizes, keeps_windows, keep)
        num_fixed = int(np.count_nonzero(keep))
        expected = float(certain)
        best, count = expected / times[num_fixed], 0
        for index in range(min(len(order), len(times) - 1 - num_fixed)):
            expected += probabilities[order[index]]
            rate = expected / times[num_fixed + index + 1]
            if rate > best:
                best, count = rate, index + 1
        if best > plain or not num_fixed:
            break
    keep[order[:count]] = True
    return keep


@compiled
def _order(
    probabilities: FloatArray, parents: IntArray, sizes: NDArray[np.int64], keeps_windows: bool, fixed: BoolArray
) -> NDArray[np.int64]:
    """The nodes that may be verified beside those of windows, most probable path first; parents come before their
    children, because path probabilities never grow downwards. Nodes below a window that is left out may not be
    verified. Sets `fixed` [n] for each fixed node that is kept."""
    reachable = np.zeros(len(parents), np.bool_)
    free = np.empty(len(parents), np.int64)
    num_free = start = 0
    for num_nodes, num_fixed, fits in sizes:
        for node in range(start, start + num_nodes):
            if node < start + num_fixed:
                fixed[node] = reachable[node] = keeps_windows and fits != 0
            elif parents[node] < 0 or reachable[start + parents[node]]:
                reachable[node] = True
                free[num_free] = node
                num_free += 1
        start += num_nodes
    free = free[:num_free]
    return free[np.argsort(-probabilities[free], kind="mergesort")]


def _trees(items: Sequence[PlanItem], keep: BoolArray) -> list[DraftTree]:
    """The trees of the nodes that are kept. keep: [n] for the nodes of all items."""
    trees: list[DraftTree] = []
    start = 0
    for item in items:
        end = start + len(item.tree)
        trees.append(select_nodes(item.tree, keep[start:end]))
        start = end
    return trees
