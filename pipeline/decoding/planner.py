"""How much of every sequence's draft tree is worth verifying in the next pass.

A pass over a batch yields one token per sequence and, in expectation, the sum of the path probabilities of all draft
nodes verified; it takes the time that the measured `CostCurve` gives for that many tokens. The planner takes nodes from
the trees of all sequences together, most probable first, and stops where expected tokens per second are highest: long
trees when a pass has room to spare, fewer nodes under load, and none when drafts do not pay. The time that the prompts
in a pass take does not count, as it is the same for every plan.

A plan follows from its arguments alone. It need not explore: the sources learn from accepted text whether or not they
were asked, and whenever a pass has room to spare (which changes with the load) even improbable nodes are sent and
judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from pipeline.decoding.cost import CostCurve, Times
from pipeline.decoding.tree import EMPTY_TREE, DraftTree, select_nodes


class PlanItem(NamedTuple):
    """One sequence of the next pass: what it drafted, the tokens it must compute in any case, and its cached length.
    yields_token: False for a part of a prompt, after which there is nothing to choose yet."""

    tree: DraftTree
    num_pending: int
    context_len: int
    yields_token: bool = True


class Planner(Protocol):
    """Decides what is verified."""

    def plan(self, items: Sequence[PlanItem], max_num_tokens: int) -> list[DraftTree]:
        """One tree per item, a part of the item's own. max_num_tokens: room of the pass, pending tokens included."""


class FixedPlanner:
    """Verifies whatever was drafted, as far as the pass has room; every sequence has the same claim to it."""

    def plan(self, items: Sequence[PlanItem], max_num_tokens: int) -> list[DraftTree]:
        room = max_num_tokens - sum(item.num_pending for item in items)
        if sum(len(item.tree) for item in items) <= room:
            return [item.tree for item in items]
        kept, _ = _kept_windows(items, room)
        order = _by_probability(items, kept)
        return _trees(items, kept, order[: max(room - _num_fixed(items, kept), 0)])


class AdaptivePlanner:
    """Verifies as much as the measured cost of a pass repays."""

    def __init__(self, curve: CostCurve) -> None:
        self._curve = curve

    def plan(self, items: Sequence[PlanItem], max_num_tokens: int) -> list[DraftTree]:
        if not items:
            return []
        pending = sum(item.num_pending for item in items)
        room = max_num_tokens - pending
        if room <= 0 or not any(len(item.tree) for item in items):
            return [EMPTY_TREE] * len(items)
        context_len = round(sum(item.context_len for item in items) / len(items))
        num_nodes = min(room, sum(len(item.tree) for item in items))
        certain = sum(item.yields_token for item in items)
        times = self._curve.seconds_up_to(pending + num_nodes, len(items), context_len)
        # Times of passes with 0, 1, 2 ... nodes. A prompt's time is spent in any case. An accepted draft
        # saves a step of decoding, so the prompt's time is left out.
        times = times[pending:] - times[pending] + times[max(certain, 1)]
        plain = certain / times[0]
        kept, num_fixed = _kept_windows(items, room)
        rate, trees = _best(items, kept, room, times)
        # A window earns nothing by itself, its n-grams do later; so it is sent while the nodes of this step pay for
        # it, too. If they do not, they may still be worth their own time.
        if rate <= plain and num_fixed:
            rate, trees = _best(items, [False] * len(items), room, times)
        return trees if rate > plain else [EMPTY_TREE] * len(items)


class _Entry(NamedTuple):
    probability: float
    item: int
    node: int


def _best(items: Sequence[PlanItem], kept: Sequence[bool], room: int, times: Times) -> tuple[float, list[DraftTree]]:
    """Find the number of nodes beside the kept windows with the most tokens per second. Returns that rate, and the
    trees. times: of passes by number of nodes, windows included."""
    num_fixed = _num_fixed(items, kept)
    order = _by_probability(items, kept)[: room - num_fixed]
    certain = sum(item.yields_token for item in items)
    expected = certain + np.concatenate(([0.0], np.cumsum([entry.probability for entry in order])))
    rates = expected / times[num_fixed : num_fixed + len(expected)]
    best = int(rates.argmax())
    return float(rates[best]), _trees(items, kept, order[:best])


def _kept_windows(items: Sequence[PlanItem], room: int) -> tuple[list[bool], int]:
    """Which items' fixed nodes fit into the room, first come first served, and how many nodes these are."""
    kept: list[bool] = []
    used = 0
    for item in items:
        fits = used + item.tree.num_fixed <= room
        kept.append(fits)
        used += item.tree.num_fixed if fits else 0
    return kept, used


def _num_fixed(items: Sequence[PlanItem], kept: Sequence[bool]) -> int:
    return sum(item.tree.num_fixed for item, keep in zip(items, kept, strict=True) if keep)


def _by_probability(items: Sequence[PlanItem], kept: Sequence[bool]) -> list[_Entry]:
    """Nodes that may be chosen, most probable path first; parents come before their children, as paths only get less
    probable downwards. Trees without probabilities count as certain to be refused, so they fill what room is left."""
    entries: list[_Entry] = []
    for index, (item, keep) in enumerate(zip(items, kept, strict=True)):
        tree = item.tree
        first = tree.num_fixed
        probabilities = [0.0] * len(tree) if tree.probabilities is None else tree.probabilities.tolist()
        reachable = np.ones(len(tree), np.bool_)
        if not keep:
            # Without its window an item can still use the nodes that do not hang below it.
            reachable[:first] = False
            for node in range(first, len(tree)):
                reachable[node] = tree.parents[node] < 0 or reachable[tree.parents[node]]
        entries += [_Entry(probabilities[node], index, node) for node in range(first, len(tree)) if reachable[node]]
    return sorted(entries, key=lambda entry: -entry.probability)


def _trees(items: Sequence[PlanItem], kept: Sequence[bool], chosen: Sequence[_Entry]) -> list[DraftTree]:
    masks = [np.zeros(len(item.tree), np.bool_) for item in items]
    for mask, item, keep in zip(masks, items, kept, strict=True):
        mask[: item.tree.num_fixed] = keep
    for entry in chosen:
        masks[entry.item][entry.node] = True
    return [select_nodes(item.tree, mask) for item, mask in zip(items, masks, strict=True)]
