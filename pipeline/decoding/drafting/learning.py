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
    """Outcome of the proposed nodes. verified: [n] index in the verified tree, -1 if nothing is known about a node.
    accepted: [n]."""

    verified: IntArray
    accepted: BoolArray


def learn_from_step(
    mix: Mix, calibration: Calibration, grown: Grown, channels: IntArray, step: StepResult, path: IntArray
) -> IntArray:
    """Update the mix with every verified node whose parent was accepted, and the calibration with every verified node.
    channels: [n] channel of each grown node. path: accepted nodes of the step. Returns [total] the index in `step.tree`
    of each proposed node, -1 if it was not verified."""
    # Without a pass of its own (a forced token, a cut output) a step has no token after the accepted ones.
    last_token = step.token_ids[-1] if len(step.token_ids) == len(path) + 1 else _NO_TOKEN
    cells, tree = (calibration.promised, calibration.accepted), step.tree
    return _learn(tuple(mix), cells, tuple(grown), channels, tree.token_ids, tree.parents, path, last_token)


@compiled
def _learn(
    mix_arrays: Plain,
    cells: Plain,
    grown_arrays: Plain,
    channels: IntArray,
    verified_ids: IntArray,
    verified_parents: IntArray,
    path: IntArray,
    last_token: int,
) -> IntArray:
    mix, grown = Mix(*mix_arrays), Grown(*grown_arrays)
    verified, accepted = outcome_of(grown.token_ids, grown.parents, verified_ids, verified_parents, path, last_token)
    for node in range(len(verified)):
        parent = grown.parents[node]
        if verified[node] >= 0 and (parent < 0 or accepted[parent]):
            orders, probs, noise = grown.num_orders[node], grown.channel_probs[node], grown.noise[node]
            learn(mix, orders, probs, noise, accepted[node], LEARNING_RATE)
    promised, accepted_sums = cells
    learn_ratios(promised, accepted_sums, grown.probabilities, channels, verified, accepted)
    verified_indices = np.full(len(grown.nodes), -1, np.int32)
    for proposed in range(len(verified_indices)):
        if grown.nodes[proposed] >= 0:
            verified_indices[proposed] = verified[grown.nodes[proposed]]
    return verified_indices


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

    A child of the path's last node with that token was correct but not verified, because the planner of the engine left
    it out. Nothing is known about the nodes below it."""
    is_accepted = np.zeros(len(verified_ids), np.bool_)
    is_unknown = np.zeros(len(verified_ids), np.bool_)
    for node in path:
        is_accepted[node] = True
    last = path[-1] if len(path) else -1
    unsent = last + 1
    while unsent < len(verified_ids) and (verified_parents[unsent] != last or verified_ids[unsent] != last_token):
        unsent += 1
    if unsent < len(verified_ids):
        is_accepted[unsent] = True
        for node in range(unsent + 1, len(verified_ids)):
            above = verified_parents[node]
            is_unknown[node] = above >= unsent and (above == unsent or is_unknown[above])
    found = np.full(len(token_ids), -1, np.int32)
    verified = np.full(len(token_ids), -1, np.int32)
    accepted = np.zeros(len(token_ids), np.bool_)
    for node in range(len(token_ids)):
        above = -1 if parents[node] < 0 else found[parents[node]]
        if parents[node] >= 0 and above < 0:
            continue
        index = above + 1
        while index < len(verified_ids) and (
            verified_parents[index] != above or verified_ids[index] != token_ids[node]
        ):
            index += 1
        if index < len(verified_ids):
            found[node] = index
            accepted[node] = is_accepted[index]
            verified[node] = -1 if is_unknown[index] else index
    return Outcome(verified, accepted)
