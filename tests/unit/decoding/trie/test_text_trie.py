"""The trie against plain dictionaries: counts, memory limit, sequences in parts, namespaces."""

from __future__ import annotations

import resource

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.decoding.trie import Trie
from pipeline.decoding.trie.arrays import bytes_for
from pipeline.decoding.trie.text_trie import TrieStatistics, least_nodes
from tests.kernel_examples import examples, texts
from tests.unit.decoding.trie.integrity import check
from tests.unit.decoding.trie.reference import ReferenceTrie

TOKENS = texts(3, 12)
NAMES = st.sampled_from(["", "a"])


def ids(tokens: list[int]) -> np.ndarray:
    return np.asarray(tokens, np.int32)


def assert_equal(trie: Trie, reference: ReferenceTrie) -> None:
    check(trie)
    for name in ("", "a"):
        known = reference.strings.get(name, {})
        for string, (times, _) in known.items():
            assert trie.count(ids(list(string)), name) == times, (name, string)
            # And nothing that the reference does not know.
            for token in range(4):
                longer = (*string, token)
                if len(longer) <= trie.branch_length and longer not in known:
                    assert trie.count(ids(list(longer)), name) == 0, (name, longer)
        for token in range(4):
            assert (trie.count(ids([token]), name) > 0) == ((token,) in known)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), NAMES, TOKENS),
        st.tuples(st.just("extend"), st.none(), TOKENS),
        st.tuples(st.just("prune"), st.none(), st.none()),
        st.tuples(st.just("remove"), NAMES, st.none()),
    ),
    max_size=25,
)


@settings(max_examples=examples(150))
@given(OPERATIONS, st.integers(1, 6), st.booleans())
# Pruning leaves a node without children whose edge a shorter suffix of the same text cuts: the longer one must keep its
# row.
@example([("insert", "a", [0, 0, 0]), ("prune", None, None), ("insert", "a", [0, 0, 0])], 5, False)
@example([("insert", "a", [1, 1, 1]), ("prune", None, None), ("extend", None, [1, 1, 0])], 4, False)
def test_any_order_of_calls_leaves_what_plain_dicts_would_hold(operations, branch_length, bounded):
    trie = Trie(branch_length, 1 << 17 if bounded else None)
    reference = ReferenceTrie(branch_length)
    for what, first, second in operations:
        if what == "insert":
            trie.insert(ids(second), first)
            reference.insert(second, first)
        elif what == "extend":
            trie.extend(ids(second))
            reference.extend(second)
        elif what == "prune":
            trie.prune()
            reference.prune()
        else:
            trie.remove(first)
            reference.remove(first)
    assert_equal(trie, reference)


@settings(max_examples=examples(30))
@given(st.lists(texts(4, 60, min_len=1), min_size=1, max_size=20), st.integers(2, 5))
def test_a_full_trie_forgets_exactly_the_least_recently_used(inserted, branch_length):
    trie = Trie(branch_length, 6000)
    reference = ReferenceTrie(branch_length)
    position, serial = 0, 0
    serial_at: list[int] = []
    for text in inserted:
        trie.insert(ids(text))
        # Two slots of the ring open each text.
        serial_at += [serial, serial, *range(serial, serial + len(text))]
        serial += len(text)
        position += 2 + len(text)
        reference.insert(text)
    check(trie)
    forgotten = trie.statistics.num_forgotten
    held = serial_at[forgotten] if forgotten < len(serial_at) else serial
    if not forgotten:
        assert_equal(trie, reference)
    for string, (_, latest) in reference.strings.get("", {}).items():
        assert (trie.count(ids(list(string))) > 0) == (latest >= held)


def test_memory_never_exceeds_the_limit_and_the_newest_text_stays():
    trie = Trie(6, 1 << 13)
    rng = np.random.default_rng(0)
    text = rng.integers(0, 500, 1_500).astype(np.int32)
    for begin in range(0, len(text), 50):
        trie.insert(text[begin : begin + 50])
        assert trie.statistics.num_bytes <= 1 << 13
    check(trie)
    assert trie.statistics.num_forgotten > 0
    assert all(trie.count(text[at : at + 6]) for at in range(len(text) - 50, len(text) - 6))
    assert not any(trie.count(text[at : at + 6]) for at in range(0, 1000, 7))


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(st.sampled_from(["", "a", None]), st.integers(1, 60), st.integers(0, 1 << 30)),
        max_size=60,
    ),
    st.integers(1, 6),
    st.integers(2, 30),
)
def test_a_small_trie_stays_consistent_while_it_forgets(turns, branch_length, vocabulary):
    """None instead of a namespace: the sequence before is continued."""
    trie = Trie(branch_length, 7000)
    reference = ReferenceTrie(branch_length)
    for name, length, seed in turns:
        text = np.random.default_rng(seed).integers(0, vocabulary, length).astype(np.int32)
        if name is None:
            trie.extend(text)
            reference.extend(text.tolist())
        else:
            trie.insert(text, name)
            reference.insert(text.tolist(), name)
        assert trie.count(text[-branch_length:], reference.namespace)
        check(trie)
    for name, strings in reference.strings.items():
        for string, (times, _) in strings.items():
            assert trie.count(ids(list(string)), name) <= times


def test_a_sequence_longer_than_the_memory_goes_on_where_its_beginning_was_forgotten():
    trie = Trie(4, bytes_for(100))
    text = np.random.default_rng(0).integers(0, 50, 1_000).astype(np.int32)
    trie.insert(text[:600])
    trie.extend(text[600:])
    check(trie)
    assert trie.count(text[-4:])
    assert trie.statistics.num_forgotten > 800


@settings(max_examples=examples(60))
@given(st.integers(0, 2**32 - 1), st.sampled_from([3, 17, 40, 200]), st.booleans())
def test_children_are_ordered_by_count_then_by_last_use(seed, width, prunes):
    """The order decides which children a draft reads. It does not depend on what `nodes.link` notes about it. Beyond
    the first 16 children it is that of their last use."""
    trie = Trie(1)
    counts: dict[int, int] = {}
    order: list[int] = []
    tokens = np.minimum(np.random.default_rng(seed).zipf(1.3, 600), width).astype(np.int32)
    for begin in range(0, len(tokens), 50):
        piece = tokens[begin : begin + 50]
        trie.insert(piece)
        for token in piece.tolist():
            counts[token] = counts.get(token, 0) + 1
            if order[:1] != [token]:
                order = [other for other in order if other != token]
                lower = (place for place, other in enumerate(order[:16]) if counts[other] <= counts[token])
                order.insert(next(lower, min(16, len(order))), token)
        if prunes:
            trie.prune()
            counts = {token: count // 2 for token, count in counts.items()}
            order = [token for token in order if counts[token]]
            counts = {token: counts[token] for token in order}
        check(trie)
        nodes, row, found = trie.arrays.nodes, int(trie.arrays.nodes["first_child"][trie.root()]), []
        while row:
            found.append(int(nodes["token"][row]))
            row = int(nodes["next"][row])
        assert found == order


def test_children_that_move_up_as_others_are_forgotten_are_not_sorted_by_count():
    """Beyond the first 16 children the order is that of their last use."""
    often, seldom = [*range(16)], [*range(16, 36)]
    trie = Trie(1, bytes_for(116))
    trie.insert(np.repeat(ids(often), 4))
    trie.extend(np.repeat(ids(seldom), [2 + token % 2 for token in seldom]))
    trie.extend(ids([99] * 64 + [100]))  # "often" is forgotten
    assert [trie.count(ids([token])) for token in (15, 16, 17, 99, 100)] == [0, 2, 3, 64, 1]
    check(trie)


def test_the_first_text_does_not_wait_for_the_pages_of_the_hash_table():
    trie, text = Trie(12, 12 << 20), np.random.default_rng(0).integers(0, 1 << 20, 1_000).astype(np.int32)
    Trie(12).insert(text)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    trie.insert(text)
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before < trie.arrays.buckets.nbytes / 4096 / 4


def test_a_sequence_goes_on_after_its_counts_are_halved_as_one_of_its_own():
    trie = Trie(4)
    trie.insert(ids([1, 2, 1, 2]))
    trie.prune()
    assert trie.arrays.nodes["count"][trie.root()] == 2, "the number of tokens is halved too"
    trie.extend(ids([3]))
    assert [text.tolist() for _, text in trie.texts()] == [[1, 2, 1, 2], [3]]
    assert [trie.count(ids(text)) for text in ([1, 2], [2, 3], [3])] == [1, 0, 1]


def test_counts_stay_below_32_bits():
    trie = Trie(1)
    trie.insert(ids([5]))
    trie.arrays.nodes["count"][1:3] = (1 << 30) - 1
    for _ in range(2):
        trie.insert(ids([5]))
        assert trie.count(ids([5])) == 1 << 30


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_text_that_occurs_again_adds_no_nodes(size):
    """The edges that its strings share are cut where the second occurrence ends, and joined as it goes on."""
    trie = Trie(8)
    for _ in range(3):
        trie.insert(ids([]))
        for begin in range(0, 100, size):
            trie.extend(ids(list(range(begin, min(begin + size, 100)))))
        assert trie.statistics.num_nodes == 101  # the root, and one for each token


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(NAMES, TOKENS), max_size=20))
def test_the_texts_of_a_trie_are_what_was_inserted(inserted):
    trie = Trie(4, 1 << 16)
    for name, tokens in inserted:
        trie.insert(ids(tokens[:5]), name)
        trie.extend(ids(tokens[5:]))
    assert [(name, text.tolist()) for name, text in trie.texts()] == [(n, tokens) for n, tokens in inserted if tokens]


@pytest.mark.parametrize("branch_length", [1, 2, 5])
def test_the_least_memory_is_enough_and_used_up(branch_length):
    least = bytes_for(least_nodes(branch_length))
    with pytest.raises(ValueError, match=f"needs at least {least} bytes, found {least - 1}"):
        Trie(branch_length, least - 1)
    trie = Trie(branch_length, least)
    capacity = len(trie.arrays.nodes)
    assert trie.statistics.num_bytes == least
    # A token that was never seen, after a run whose suffixes all end at nodes, creates the most nodes.
    for token in range(1, 60):
        trie.insert(ids([0] * branch_length + [token]))
    check(trie)
    trie.insert(np.arange(100, 100 + capacity, dtype=np.int32))
    assert trie.statistics.num_nodes == capacity - branch_length
    trie.insert(np.zeros(2 * capacity, np.int32))
    assert trie.statistics.num_tokens == capacity - 1
    trie.insert(ids([0]))
    assert trie.statistics.num_tokens == capacity - 3, "two slots open a text"
    check(trie)


def test_statistics_count_what_is_held():
    trie = Trie(4, 1 << 14)
    trie.insert(ids([1, 2, 3]))
    trie.insert(ids([1, 2]), "a")
    capacity = ((1 << 14) - 56) // 48
    assert trie.statistics == TrieStatistics(
        num_tokens=5, num_nodes=7, num_namespaces=2, num_bytes=48 * capacity + 56, used_bytes=328, num_forgotten=0
    )
