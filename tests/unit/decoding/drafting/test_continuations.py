"""The table of continuations per context: orders, limits, namespaces, replaced rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.decoding.drafting.continuations import (
    MEMORY,
    ContinuationTable,
    empty_table,
    extend_key,
    namespace_key,
    slot_of,
    store,
    store_step,
)
from pipeline.decoding.tree import path_to, tree_from_lists

KEY = namespace_key("")


def found(table: ContinuationTable, context: list[int], order: int) -> list[int] | None:
    """The candidates after the last `order` tokens of a context."""
    key = KEY
    for token in reversed(context[len(context) - order :]):
        key = np.uint64(extend_key(key, token))
    slot = slot_of(key, table.keys.shape[1])
    if table.keys[order - 1, slot] != key:
        return None
    ids = table.ids[order - 1, slot].tolist()
    return [token for token in ids if token >= 0]


def ints(*values: int) -> np.ndarray:
    return np.asarray(values, np.int32)


def test_order_n_is_keyed_by_n_tokens() -> None:
    table = empty_table(3, 64, 2)
    store(table, KEY, ints(3, 2, 1), ints(8, 9), np.asarray([0.6, 0.2], np.float32))
    assert found(table, [3], 1) == [8, 9]
    assert found(table, [7, 2, 3], 2) == [8, 9]
    assert found(table, [7, 2, 3], 3) is None
    assert found(table, [1, 2, 3], 3) == [8, 9]
    assert found(table, [3, 2], 2) is None


def test_short_contexts_and_short_lists_fit() -> None:
    table = empty_table(2, 64, 4)
    store(table, KEY, ints(5), ints(1, 2, 3, 4), np.full(4, 0.25, np.float32))
    assert found(table, [5], 1) == [1, 2, 3, 4]
    store(table, KEY, ints(6), ints(6, -1, 7), np.full(3, 0.3, np.float32))
    assert found(table, [6], 1) == [6]
    store(table, KEY, ints(6), ints(-1), np.ones(1, np.float32))
    assert found(table, [6], 1) == [6]
    assert table.keys[1].sum() == 0


def test_older_probabilities_count_less_and_the_best_stay() -> None:
    table = empty_table(1, 64, 3)
    store(table, KEY, ints(5), ints(1, 2, 3), np.asarray([0.5, 0.4, 0.01], np.float32))
    store(table, KEY, ints(5), ints(4, 2, 6), np.asarray([0.8, 0.1, 0.02], np.float32))
    slot = slot_of(np.uint64(extend_key(KEY, 5)), 64)
    assert table.ids[0, slot].tolist() == [4, 2, 1]
    share = float(MEMORY)
    expected = [0.8 * (1 - share), 0.1 * (1 - share) + 0.4 * share, 0.5 * share]
    assert table.probs[0, slot].tolist() == pytest.approx(expected, rel=1e-5)


def test_token_0_is_a_token_like_any_other() -> None:
    table = empty_table(1, 64, 3)
    store(table, KEY, ints(5), ints(0, 2), np.asarray([0.5, 0.3], np.float32))
    store(table, KEY, ints(5), ints(2, 0, 3, 4), np.asarray([0.6, 0.2, 0.1, 0.1], np.float32))
    assert found(table, [5], 1) == [2, 0, 3]
    store(table, KEY, ints(5), ints(6), np.asarray([0.5], np.float32))
    assert found(table, [5], 1) == [6, 2, 0]


def test_every_node_of_a_step_is_kept_and_the_accepted_ones_win() -> None:
    # Tokens 3 and 3: one accepted, one a rejected guess after it.
    tree = tree_from_lists([3, 4, 3], [-1, 0, 1])
    table = empty_table(2, 64, 1)
    rows = np.asarray([[3], [5], [6], [7]], np.int32)
    ones = np.ones((4, 1), np.float32)
    store_step(tuple(table), KEY, ints(1, 2), tree.token_ids, tree.parents, ints(0), rows, ones)
    assert found(table, [2], 1) == [3]
    assert found(table, [3], 1) == [5]
    assert found(table, [4, 3], 2) == [7]
    assert found(table, [2, 3], 2) == [5]
    assert found(table, [4], 1) == [6]


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=10),
)
def test_step_storage_equals_storing_each_path_alone(context: list[int], nodes: list[tuple[int, int]]) -> None:
    parents = [back % (index + 1) - 1 for index, (_, back) in enumerate(nodes)]
    tree = tree_from_lists([token for token, _ in nodes], parents)
    rows = np.arange(len(nodes) + 1, dtype=np.int32)[:, None]
    probs = np.ones((len(nodes) + 1, 1), np.float32)
    table, reference = empty_table(3, 256, 1), empty_table(3, 256, 1)
    store_step(tuple(table), KEY, ints(*context), tree.token_ids, tree.parents, ints(), rows, probs)
    for node in [*range(len(nodes)), -1]:
        path = [int(tree.token_ids[step]) for step in path_to(tree, node)]
        store(reference, KEY, ints(*reversed(context + path)), rows[node + 1], probs[node + 1])
    assert np.array_equal(table.keys, reference.keys)
    assert np.array_equal(table.ids, reference.ids)
    assert np.array_equal(table.probs, reference.probs)


def test_one_namespace_never_finds_what_another_has_stored() -> None:
    table = empty_table(2, 64, 1)
    store(table, namespace_key("other"), ints(2, 1), ints(3), np.ones(1, np.float32))
    assert found(table, [1, 2], 1) is None
    assert found(table, [1, 2], 2) is None


def test_a_row_that_another_text_takes_over_keeps_nothing_of_the_first() -> None:
    """All keys of a table of one row collide. Even so, a namespace must not read another one's row."""
    table = empty_table(1, 1, 3)
    context = np.asarray([1], np.int32)
    first, second = namespace_key("first"), namespace_key("second")
    store(table, first, context, np.asarray([5, 6, 7], np.int32), np.asarray([0.5, 0.3, 0.2], np.float32))
    for _ in range(2):  # the second time it adds to its own
        store(table, second, context, np.asarray([8, -1, -1], np.int32), np.asarray([0.1, 0.0, 0.0], np.float32))
        assert table.ids[0, 0].tolist() == [8, -1, -1]
        assert table.probs[0, 0, 0] == pytest.approx(0.1)
    assert table.keys[0, 0] == extend_key(second, 1)
