"""What the drafter learns from a step: which of the nodes that it proposed were verified, and which were accepted."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.decoding.compiled import Plain, compiled
from pipeline.decoding.drafting.calibration import Calibration, learn_ratios
from pipeline.decoding.drafting.growth import Grown
from pipeline.decoding.drafting.mixing import Mix, learn
from pipeline.decoding.request import StepResult
from pipeline.decoding.tree import BoolArray, IntArray

LEARNING_RATE = 0.015
_NO_TOKEN = -1


class Outcome(NamedTuple):
    """Outcome of the proposed nodes. known: [n] whether it is known. accepted: [n] whether a node was right."""

    known: BoolArray
    accepted: BoolArray


def learn_from_step(mix: Mix, calibration: Calibration, grown: Grown, step: StepResult, path: IntArray) -> None:
    """Update the mix with every verified node whose parent was accepted, and the calibration with every verified node.
    path: accepted nodes of the step."""
    # Without a pass of its own (a forced token, a cut output) a step has no token after the accepted ones.
    last_token = step.token_ids[-1] if len(step.token_ids) == len(path) + 1 else _NO_TOKEN
    verified = step.tree.token_ids, step.tree.parents
    _learn(tuple(mix), tuple(calibration), tuple(grown), *verified, path, last_token)


@compiled
def _learn(
    mix_arrays: Plain,
    calibration_arrays: Plain,
    grown_arrays: Plain,
    verified_ids: IntArray,
    verified_parents: IntArray,
    path: IntArray,
    last_token: int,
) -> None:
    mix, grown = Mix(*mix_arrays), Grown(*grown_arrays)
    known, accepted = outcome_of(grown.token_ids, grown.parents, verified_ids, verified_parents, path, last_token)
    for node in range(len(known)):
        parent = grown.parents[node]
        if known[node] and (parent < 0 or accepted[parent]):
            orders, probs, noise = grown.num_orders[node], grown.channel_probs[node], grown.noise[node]
            learn(mix, orders, probs, noise, accepted[node], LEARNING_RATE)
    learn_ratios(Calibration(*calibration_arrays), grown.estimates, grown.channels, known, accepted)


@compiled
def outcome_of(
    token_ids: IntArray,
    parents: IntArray,
    verified_ids: IntArray,
    verified_parents: IntArray,
    path: IntArray,
    last_token: int,
) -> Outcome:
    """The outcome of the nodes of a proposed tree (token_ids, parents). path: accepted nodes of the verified tree.
    last_token: the target's own token after them, `_NO_TOKEN` if there is none.

    A child of the path's last node with that token was right but not verified: the planner of the engine left it out.
    Nothing is known about the nodes below it."""
    is_accepted = np.zeros(len(verified_ids), np.bool_)
    for node in path:
        is_accepted[node] = True
    unsent = _child_of(verified_ids, verified_parents, path[-1] if len(path) else -1, last_token)
    if unsent >= 0:
        is_accepted[unsent] = True
    # The verified node of each proposed one, -1 if there is none.
    found = np.full(len(token_ids), -1, np.int32)
    known = np.zeros(len(token_ids), np.bool_)
    accepted = np.zeros(len(token_ids), np.bool_)
    for node in range(len(token_ids)):
        parent = parents[node]
        if parent >= 0 and found[parent] < 0:
            continue
        found[node] = _child_of(verified_ids, verified_parents, found[parent] if parent >= 0 else -1, token_ids[node])
        if found[node] >= 0:
            known[node] = parent < 0 or (known[parent] and found[parent] != unsent)
            accepted[node] = is_accepted[found[node]]
    return Outcome(known, accepted)


@compiled
def _child_of(token_ids: IntArray, parents: IntArray, above: int, token: int) -> int:
    """The first child of a node with a token, -1 if there is none."""
    for node in range(above + 1, len(token_ids)):
        if parents[node] == above and token_ids[node] == token:
            return node
    return -1
