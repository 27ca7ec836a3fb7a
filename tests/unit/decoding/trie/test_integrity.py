"""Damage to the arrays of a trie is found, whatever it is, and named."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.decoding.trie import Trie
from pipeline.decoding.trie.insertion import MAX_COUNT
from pipeline.decoding.trie.nodes import locate

BRANCH = 4
# Of the trie below: the first row never used, the end of the text, and the capacity.
FRESH, HEAD, LENGTH = 19, 18, 1024
COUNTER, POINTER, DEPTH = "a counter lies beyond", "points beyond the arrays", "does not lie below its parent"
SIBLINGS, COUNT, FORGOTTEN = "in the wrong list of siblings", "seen more often", "text that is forgotten"
SPELLING, FREE, HEADER = "not spelled by the text", "free nodes are not listed", "damaged header, at slot {}$"
ROOT, NUMBER, BUCKET = "no root of its own.*at node {}$", "nodes are in use that are not counted", "wrong bucket"


def ids(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


@pytest.fixture
def trie() -> Trie:
    """A trie with two namespaces and two free rows, 13 and 14."""
    trie = Trie(BRANCH)
    trie.insert(ids("abcxabcy"))
    trie.insert(ids("z"), "gone")
    trie.insert(ids("abc"), "other")
    trie.remove("gone")
    state = trie.arrays.state
    assert (state["fresh"][0], state["head"][0], len(trie.arrays.text)) == (FRESH, HEAD, LENGTH)
    assert trie.roots == {"": 1, "other": 15}
    trie.check()
    return trie


def row_of(trie: Trie, text: str) -> int:
    """The row of the node on whose edge a string ends; the root for no string."""
    return int(locate(trie.arrays, trie.root(), ids(text), 0, len(text)))


def assert_damaged(trie: Trie, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        trie.check()


def test_an_empty_trie_is_whole() -> None:
    Trie(BRANCH).check()


@pytest.mark.parametrize(
    ("counter", "value", "fault"),
    [
        ("fresh", 0, COUNTER),
        ("fresh", LENGTH + 1, COUNTER),
        ("fresh", LENGTH, ROOT.format(FRESH)),  # unused rows look like roots
        ("free", -1, COUNTER),
        ("free", FRESH, COUNTER),
        ("free", FRESH - 1, FREE),
        ("free", 0, FREE),
        ("free", 14, FREE),
        ("branch_length", 0, COUNTER),
        ("branch_length", LENGTH // 4 + 1, COUNTER),
        ("branch_length", LENGTH // 4, SPELLING),
        ("oldest", -1, COUNTER),
        ("oldest", HEAD + 1, COUNTER),
        ("oldest", HEAD, FORGOTTEN),
        ("head", LENGTH + 1, COUNTER),
        ("oldest_root", -1, COUNTER),
        ("oldest_root", FRESH, COUNTER),
        ("oldest_root", FRESH - 1, HEADER.format(0)),
        ("num_nodes", 15, NUMBER),
        ("num_unsplit", 2 * LENGTH + 1, COUNTER),
        ("num_unsplit", LENGTH, COUNTER),
        ("num_buckets", 2 * LENGTH + 1, COUNTER),
    ],
)
def test_a_wrong_counter_is_found(trie: Trie, counter: str, value: int, fault: str) -> None:
    trie.arrays.state[counter] = value
    assert_damaged(trie, fault)


@pytest.mark.parametrize(
    ("text", "field", "value", "fault"),
    [
        ("ab", "first_child", FRESH, POINTER),
        ("ab", "first_child", -1, POINTER),
        ("ab", "next", FRESH, POINTER),
        ("ab", "previous", FRESH, POINTER),
        ("ab", "previous", -FRESH, POINTER),
        ("ab", "parent", FRESH, POINTER),
        ("ab", "parent", -2, POINTER),
        ("ab", "start", LENGTH, POINTER),
        ("ab", "start", -1, POINTER),
        ("ab", "depth", BRANCH + 1, POINTER),
        ("ab", "depth", -1, POINTER),
        ("", "depth", 1, DEPTH),
        ("", "next", 2, DEPTH),
        ("", "previous", 2, DEPTH),
        ("", "parent", -1, DEPTH),
        ("ab", "depth", 0, DEPTH),
        ("ab", "depth", BRANCH, DEPTH),  # its children have this depth too
        ("ab", "parent", 13, DEPTH),
        ("ab", "count", 0, COUNT),
        ("ab", "count", 9, COUNT),
        ("ab", "count", 1, COUNT),
        ("x", "start", HEAD, FORGOTTEN),
        ("x", "start", HEAD - 1, SPELLING),
        ("x", "token", ord("y"), SPELLING),
        ("abcx", "start", 3, SPELLING),
        ("ab", "first_child", 0, NUMBER),
        ("ab", "first_child", 6, SIBLINGS),
        ("b", "previous", 5, SIBLINGS),
        ("c", "previous", -2, SIBLINGS),
        ("c", "previous", 2, SIBLINGS),
        ("y", "depth", 3, SPELLING),
        ("y", "first_child", 2, SPELLING),
    ],
)
def test_a_wrong_field_of_a_node_is_found(trie: Trie, text: str, field: str, value: int, fault: str) -> None:
    trie.arrays.nodes[field][row_of(trie, text)] = value
    assert_damaged(trie, fault)


@pytest.mark.parametrize("tokens", [("abcx", "bcx"), ("bcx", "cx"), ("cx", "x")])
def test_all_tokens_above_a_node_are_compared(trie: Trie, tokens: tuple[str, str]) -> None:
    """A node below `longer` at the place of `shorter` has the right first token but another path."""
    longer, shorter = (row_of(trie, text) for text in tokens)
    trie.arrays.nodes["start"][longer] = trie.arrays.nodes["start"][shorter]
    assert_damaged(trie, SPELLING)


@pytest.mark.parametrize(("slot", "value", "found"), [(13, -14, 13), (13, -FRESH, 13), (14, 0, 13), (17, -1, 17)])
def test_a_wrong_beginning_of_a_sequence_is_found(trie: Trie, slot: int, value: int, found: int) -> None:
    trie.remove("other")  # whose nodes would show it first
    trie.arrays.text[13:18] = -1, -1, 0, 0, 0
    trie.check()
    trie.arrays.text[slot] = value
    assert_damaged(trie, HEADER.format(found))


def test_roots_and_namespaces_belong_together(trie: Trie) -> None:
    trie.roots["more"] = 16
    assert_damaged(trie, ROOT.format(16))
    trie.roots = {"": 1}
    assert_damaged(trie, ROOT.format(15))
    trie.roots = {"": 1, "other": 16}
    assert_damaged(trie, ROOT.format(15))


@pytest.mark.parametrize("row", [0, -1, FRESH, 13, 3])
def test_a_wrong_bucket_is_found(trie: Trie, row: int) -> None:
    (bucket,) = np.flatnonzero(trie.arrays.buckets == row_of(trie, "a"))
    trie.arrays.buckets[bucket] = row
    assert_damaged(trie, BUCKET)


def test_a_bucket_that_never_ends_is_found(trie: Trie) -> None:
    row = row_of(trie, "a")
    trie.arrays.bucket_next[row] = row
    assert_damaged(trie, BUCKET)


def test_a_list_of_free_rows_that_never_ends_is_found(trie: Trie) -> None:
    trie.arrays.nodes["next"][14] = 13
    assert_damaged(trie, FREE)


def test_a_wrong_note_about_frequent_siblings_is_found() -> None:
    trie = Trie(1)
    trie.insert(np.tile(np.arange(40, dtype=np.int32), 3))
    trie.insert(np.asarray([40], np.int32))
    nodes = trie.arrays.nodes
    first = int(nodes["first_child"][trie.root()])
    noted = -int(nodes["previous"][first])
    assert noted > 0
    trie.check()
    for row in (int(nodes["previous"][noted]), int(nodes["next"][noted])):
        nodes["previous"][first] = -row
        assert_damaged(trie, SIBLINGS)
    nodes["previous"][first] = -noted
    for row in (first, int(nodes["previous"][noted])):
        nodes["count"][row] -= 1
        assert_damaged(trie, SIBLINGS)
        nodes["count"][row] += 1
    trie.check()


def test_a_count_that_has_reached_its_limit_stays_there(trie: Trie) -> None:
    """Its children may then have been seen more often than it counts."""
    nodes, tokens = trie.arrays.nodes, ids("abcx")
    for text in ("", "a", "b"):
        nodes["count"][row_of(trie, text)] = MAX_COUNT
    trie.insert(tokens)
    assert [trie.count(tokens[at : at + 1]) for at in (0, 1, 2)] == [2**30, 2**30, 3]
    assert nodes["count"][trie.root()] == 2**30
    trie.check()
    nodes["count"][trie.root()] -= 1
    assert_damaged(trie, COUNT)
