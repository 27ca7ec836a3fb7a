"""Growth of a draft tree: best nodes first, with weights that are learned per candidate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.decoding.drafting import growth
from pipeline.decoding.drafting.calibration import first_calibration
from pipeline.decoding.drafting.continuations import ContinuationTable, empty_table, namespace_key, store
from pipeline.decoding.drafting.first_rows import NO_FIRST_ROWS, FirstRows
from pipeline.decoding.drafting.growth import LEAST_COUNTED, Grown
from pipeline.decoding.drafting.mixing import OTHERS, Mix, mixed_probability
from pipeline.decoding.drafting.nodes import new_nodes
from pipeline.decoding.drafting.proposals import add_tree
from pipeline.decoding.drafting.recent_rows import EVERY, NO_RECENT_ROWS, NONE, RecentRows
from pipeline.decoding.noise import NO_NOISE, NoiseKey, token_noise
from pipeline.decoding.request import SamplingParams
from pipeline.decoding.sampling import choose_token
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import DraftTree, check_tree, depths, read_only, tree_from_lists
from tests.fakes import make_request

NUM_NAMING = 5
NUM_CHANNELS = 7  # two proposing sources, two orders, the first rows, two kinds of recent rows
TABLE_CHANNEL = 2
KEY = namespace_key("")
# Of tokens 0 and 1; the second row ends early.
FIRST = FirstRows(np.asarray([[2, 1], [3, -1]], np.int32), np.asarray([[0.5, 0.2], [0.7, 0.0]], np.float32))
SAMPLED = NoiseKey(np.uint64(5), 0.7)
VOCAB_SIZE = 50


# The trees of sources 0, 1, ...
Proposals = list[DraftTree]


def proposed(tokens: list[int], parents: list[int], conditionals: list[float], num_fixed: int = 0) -> DraftTree:
    """A tree from the probability of each node given its parent."""
    paths: list[float] = []
    for parent, conditional in zip(parents, conditionals, strict=True):
        paths.append(conditional * (paths[parent] if parent >= 0 else 1.0))
    return replace(tree_from_lists(tokens, parents, paths), num_fixed=num_fixed)


def grow(
    context: np.ndarray,
    proposals: Proposals,
    table: ContinuationTable,
    first: FirstRows,
    mix: Mix,
    max_nodes: int,
    max_depth: int,
    *,
    noise: NoiseKey = NO_NOISE,
    recent: RecentRows = NO_RECENT_ROWS,
    least: float = 0.0,
    table_channel: int = TABLE_CHANNEL,
) -> Grown:
    """Read-only, as in a drafter's call. A writable array would cause another compilation."""
    num_listed = table.ids.shape[0] * table.ids.shape[2] + first.ids.shape[1]
    nodes = new_nodes(1 + sum(map(len, proposals)) + max_nodes * num_listed, mix.weights.shape[1] - 1)
    for channel, tree in enumerate(proposals):
        add_tree(nodes, channel, tree, DraftBudget(99, 99), VOCAB_SIZE)
    rows = tuple(table), KEY, tuple(first), tuple(recent)
    plain = tuple(first_calibration(NUM_NAMING)), np.arange(NUM_NAMING, dtype=np.int32), tuple(noise)
    limits = max_nodes, max_depth, least, VOCAB_SIZE
    return Grown(*growth.grow(read_only(context), tuple(nodes), *rows, table_channel, tuple(mix), *plain, *limits))


def mix_of(weights: np.ndarray) -> Mix:
    return Mix(weights, np.zeros((*weights.shape, 0), np.float32), np.zeros(0, np.float32))


def first_mix() -> Mix:
    """With different weights in every set, so that a test detects a wrong set."""
    weights = np.tile(np.asarray([0.8, 1.0, -0.5], np.float32), (3, NUM_CHANNELS + 1, 1))
    weights[:, -1] = -1.0, 0.0, 0.0
    weights[1, :-1, 1], weights[2, :-1, 0] = 0.5, 0.6
    return mix_of(weights)


@st.composite
def proposal_sets(draw: st.DrawFn) -> Proposals:
    """One or two random trees, of which the first may have fixed nodes."""
    trees: Proposals = []
    for channel in range(draw(st.integers(0, 2))):
        size = draw(st.integers(0, 6))
        parents = [draw(st.integers(-1, node - 1)) for node in range(size)]
        tokens = [draw(st.integers(0, 3)) for _ in range(size)]
        conditionals = [draw(st.sampled_from([0.9, 0.5, 0.2, 0.05])) for _ in range(size)]
        trees.append(proposed(tokens, parents, conditionals, draw(st.integers(0, size)) if channel == 0 else 0))
    return trees


def num_fixed_of(proposals: Proposals) -> int:
    return sum(tree.num_fixed for tree in proposals)


@st.composite
def tables(draw: st.DrawFn) -> ContinuationTable:
    table = empty_table(2, 64, 2)
    for _ in range(draw(st.integers(0, 8))):
        context = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
        ids = draw(st.permutations(range(4)))[:2]
        store(table, KEY, np.asarray(context, np.int32), np.asarray(ids, np.int32), np.asarray([0.6, 0.3], np.float32))
    return table


@st.composite
def recent_rows(draw: st.DrawFn) -> RecentRows:
    rows = draw(st.lists(st.tuples(st.permutations(range(4)), st.sampled_from([EVERY, NONE, 1, 2, 3])), max_size=4))
    ids = np.asarray([tokens[:2] for tokens, _ in rows], np.int32).reshape(-1, 2)
    probs = np.asarray([draw(st.sampled_from([(0.6, 0.3), (0.5, 0.0)])) for _ in rows], np.float32).reshape(-1, 2)
    return RecentRows(ids, probs, np.asarray([depth for _, depth in rows], np.int32))


def paths_of(tree: DraftTree) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.token_ids.tolist(), tree.parents.tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


def rated(
    context: list[int],
    path: tuple[int, ...],
    proposals: Proposals,
    table: ContinuationTable,
    mix: Mix,
    noise: NoiseKey,
    recent: RecentRows,
) -> dict[int, float]:
    """Reference for the probabilities after a path: token -> probability given the path."""
    values: dict[int, list[float]] = {}
    for channel, tree in enumerate(proposals):
        assert tree.probabilities is not None
        chance_of = [*tree.probabilities.tolist(), 1.0]
        for node, own in enumerate(paths_of(tree)):
            if own[:-1] == path:
                entry = values.setdefault(own[-1], [0.0] * NUM_CHANNELS)
                entry[channel] = max(entry[channel], chance_of[node] / chance_of[tree.parents[node]])
    text = np.asarray([*context, *path], np.int32)
    single = grow(text, [], table, FIRST, mix, 8, 1)
    for token, words in zip(single.token_ids.tolist(), single.channel_probs.tolist(), strict=True):
        entry = values.setdefault(token, [0.0] * NUM_CHANNELS)
        entry[TABLE_CHANNEL:] = [max(word, 0.0) for word in words[TABLE_CHANNEL:]]
    for ids, probs, depth in zip(*(array.tolist() for array in recent), strict=True):
        for token, probability in zip(ids, probs, strict=True):
            if token in values and depth in (EVERY, len(path) + 1):
                channel = NUM_CHANNELS - (2 if depth == EVERY else 1)
                values[token][channel] = max(values[token][channel], probability)
    names_one = [any(entry[channel] > 0 for entry in values.values()) for channel in range(NUM_CHANNELS)]
    chances = {}
    for token, entry in values.items():
        words = [OTHERS if names_one[i] and not word else word for i, word in enumerate(entry)]
        num_known = int(single.num_orders[0]) if len(single.num_orders) else 0
        own_noise = token_noise(noise, len(context) + len(path), token)
        chances[token] = mixed_probability(mix, num_known, np.asarray(words, np.float32), own_noise)
    mass = max(sum(chance for chance in chances.values() if chance > LEAST_COUNTED), 1.0)
    return {token: chance / mass for token, chance in chances.items()}


@settings(deadline=None)
@given(
    proposal_sets(),
    tables(),
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
    st.integers(1, 12),
    st.integers(1, 5),
    st.sampled_from([NO_NOISE, SAMPLED]),
    recent_rows(),
)
def test_the_tree_is_the_best_first_one(
    proposals: Proposals,
    table: ContinuationTable,
    context: list[int],
    max_nodes: int,
    max_depth: int,
    noise: NoiseKey,
    recent: RecentRows,
) -> None:
    mix = first_mix()
    # As the drafter asks: fixed nodes always fit.
    max_nodes = max(max_nodes, num_fixed_of(proposals))
    rest = proposals, table, FIRST, mix, max_nodes, max_depth
    grown = grow(np.asarray(context, np.int32), *rest, noise=noise, recent=recent)
    tree = DraftTree(grown.token_ids, grown.parents, grown.estimates)
    check_tree(tree)
    paths = paths_of(tree)
    assert len(set(paths)) == len(paths) <= max_nodes

    fixed = list(dict.fromkeys(path for tree in proposals for path in paths_of(tree)[: tree.num_fixed]))
    assert grown.num_fixed == len(fixed)
    assert paths[: len(fixed)] == fixed
    assert (depths(tree)[len(fixed) :] <= max_depth).all()

    chances = {(): 1.0}
    left_out = []
    for path in [(), *paths]:
        for token, chance in rated(context, path, proposals, table, mix, noise, recent).items():
            child = (*path, token)
            chances[child] = chances[path] * chance
            if child not in paths and len(child) <= max_depth:
                left_out.append(chances[child])
    assert grown.estimates.tolist() == pytest.approx([chances[path] for path in paths], rel=1e-3)
    free = [chances[path] for path in paths[len(fixed) :]]
    assert free == sorted(free, reverse=True) or free == pytest.approx(sorted(free, reverse=True), rel=1e-4)
    if left_out and len(paths) < max_nodes:
        raise AssertionError("nodes were left out although there was room")
    if left_out and free:
        assert max(left_out) <= min(free) * (1 + 1e-3)


def test_a_sampled_token_is_proposed_by_its_noise() -> None:
    """Two tokens are as likely. The one with the larger noise is the target's choice, and comes first."""
    table = empty_table(1, 64, 2)
    store(table, KEY, np.asarray([1], np.int32), np.asarray([2, 3], np.int32), np.asarray([0.4, 0.4], np.float32))
    mix, first = first_mix(), []
    mix.weights[:, -1, 1] = 0.85
    for seed in range(40):
        noise = NoiseKey(np.uint64(seed), 1.0)
        grown = grown_once(table, mix, noise)
        likely = np.full(5, -10, np.float32)
        likely[2:4] = 0
        request = make_request([1], sampling=SamplingParams(temperature=1.0, seed=seed))
        assert grown.token_ids[0] == choose_token(request, likely, np.asarray([1], np.int32))
        first.append(int(grown.token_ids[0]))
    assert set(first) == {2, 3}


def grown_once(table: ContinuationTable, mix: Mix, noise: NoiseKey = NO_NOISE) -> Grown:
    return grow(np.asarray([1], np.int32), [], table, NO_FIRST_ROWS, mix, 2, 1, noise=noise)


def test_first_rows_say_what_follows_a_token_of_which_the_table_says_nothing() -> None:
    context, table = np.asarray([4, 0], np.int32), empty_table(2, 64, 2)
    grown = grow(context, [], table, FIRST, first_mix(), 8, 2)
    # After 0 come 2 and 1; after 1 comes 3; the table has no row after 2.
    assert sorted(zip(grown.token_ids.tolist(), grown.parents.tolist(), strict=True)) == [
        (1, -1),
        (2, -1),
        (3, grown.token_ids.tolist().index(1)),
    ]
    assert grown.channel_probs[:, -3].tolist() == pytest.approx([0.5, 0.2, 0.7])
    assert not grown.num_orders.any()


@settings(deadline=None)
@given(proposal_sets(), tables(), st.sampled_from([0.02, 0.1, 0.3]))
def test_unlikely_nodes_are_left_out(proposals: Proposals, table: ContinuationTable, least: float) -> None:
    """The others are the first ones of the whole tree, because nodes are taken in the order of their probability."""
    rest = np.asarray([1, 2], np.int32), proposals, table, FIRST, first_mix(), 16, 4
    whole, part = grow(*rest), grow(*rest, least=least)
    count = whole.num_fixed + int((whole.estimates[whole.num_fixed :] >= least).sum())
    assert part.token_ids.tolist() == whole.token_ids[:count].tolist()
    assert part.parents.tolist() == whole.parents[:count].tolist()
    for estimate in whole.estimates[whole.num_fixed :][-1:].tolist():  # one that is as likely stays
        assert estimate in grow(*rest, least=estimate).estimates.tolist()


def test_token_0_is_a_candidate_like_any_other() -> None:
    table = empty_table(2, 64, 2)
    store(table, KEY, np.asarray([1], np.int32), np.asarray([0, 3], np.int32), np.asarray([0.6, 0.3], np.float32))
    first = FirstRows(np.asarray([[2, 1], [0, 4]], np.int32), np.asarray([[0.5, 0.2], [0.5, 0.2]], np.float32))
    context = np.asarray([1], np.int32)
    grown = grow(context, [], table, first, first_mix(), 3, 1)
    assert sorted(grown.token_ids.tolist()) == [0, 3, 4]


def test_tokens_outside_the_vocabulary_are_never_drafted() -> None:
    table = empty_table(2, 64, 3)
    ids, probs = np.asarray([0, VOCAB_SIZE, 3], np.int32), np.asarray([0.5, 0.3, 0.1], np.float32)
    store(table, KEY, np.asarray([1], np.int32), ids, probs)
    first = FirstRows(np.asarray([[2, 1], [4, VOCAB_SIZE]], np.int32), np.asarray([[0.5, 0.2], [0.5, 0.2]], np.float32))
    grown = grow(np.asarray([1], np.int32), [], table, first, first_mix(), 8, 1)
    assert sorted(grown.token_ids.tolist()) == [0, 4]


def test_the_buffer_holds_every_token_that_proposals_and_tables_name():
    """All of them differ, so that a gap between two nodes of the buffer is one node too many."""
    num_tokens, num_proposed, max_nodes = 12, 8, 4
    table = empty_table(1, 64, 2)
    for token in range(num_tokens):
        row = np.asarray([8, 9], np.int32), np.asarray([0.6, 0.3], np.float32)
        store(table, KEY, np.asarray([token], np.int32), *row)
    first = FirstRows(
        np.tile(np.asarray([10, 11], np.int32), (num_tokens, 1)), np.full((num_tokens, 2), 0.4, np.float32)
    )
    tree = proposed(list(range(num_proposed)), [-1] * num_proposed, [0.1] * num_proposed)
    mix = mix_of(np.tile(np.asarray([0.8, 1.0, -0.5], np.float32), (2, 6, 1)))

    grown = grow(np.asarray([0], np.int32), [tree], table, first, mix, max_nodes, max_nodes, table_channel=1)

    assert len(grown.token_ids) == max_nodes
