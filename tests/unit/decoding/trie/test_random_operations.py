"""Random sequences of operations on tries of all shapes. `make test-kernels` runs them with every index checked, and as
plain Python."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.decoding.tree import check_tree
from pipeline.decoding.trie import Trie, text_trie
from pipeline.decoding.trie.arrays import bytes_for
from pipeline.decoding.trie.estimator import SINGLE_FROM, Estimator
from pipeline.decoding.trie.merging import merge_tries
from pipeline.decoding.trie.snapshot import load_trie, save_trie
from tests.kernel_examples import examples
from tests.unit.decoding.trie.integrity import check

NAMES = st.sampled_from("abc")
TEXTS = st.builds(
    lambda width, length, times, seed: np.tile(
        np.random.default_rng(seed).integers(0, width, length).astype(np.int32), times
    ),
    st.sampled_from([1, 2, 4, 40, 1 << 20]),
    st.integers(0, 20),
    st.integers(1, 3),
    st.integers(0, 2**32 - 1),
)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), NAMES, TEXTS),
        st.tuples(st.sampled_from(["extend", "extend own"]), TEXTS),
        st.tuples(st.just("insert own"), st.none(), TEXTS),
        st.tuples(st.just("grow"), NAMES, TEXTS, st.sampled_from([1, 2, 16, 128]), st.sampled_from([1, 4, 32])),
        st.tuples(st.just("learn"), NAMES, TEXTS, TEXTS),
        st.tuples(st.sampled_from(["prune", "prune own", "save and load", "merge"])),
        st.tuples(st.just("remove"), NAMES),
        st.tuples(st.just("many namespaces"), st.none(), TEXTS),
    ),
    max_size=30,
)


def run(operations: list[tuple], branch_length: int, max_bytes: int | None, estimator: Estimator) -> list[Trie]:
    shared, own = Trie(branch_length, max_bytes), Trie(branch_length)
    for what, *arguments in operations:
        if what == "insert":
            shared.insert(arguments[1], arguments[0])
        elif what.startswith("extend"):
            (own if what == "extend own" else shared).extend(arguments[0])
        elif what == "insert own":
            own.insert(arguments[1])
        elif what == "grow":
            name, context, max_nodes, max_depth = arguments
            for there in (shared, None):
                tree = estimator.grow(own, there, name, context, max_nodes, max_depth)
                check_tree(tree)
                assert len(tree) <= max_nodes
        elif what == "learn":
            estimator.learn(own, shared, *arguments)
        elif what == "prune":
            shared.prune()
        elif what == "prune own":
            own.prune()
        elif what == "remove":
            shared.remove(arguments[0])
        elif what == "many namespaces":
            for number in range(20):
                shared.insert(arguments[1][:2], str(number))
        elif what == "save and load":
            with TemporaryDirectory() as folder:
                save_trie(shared, Path(folder) / "trie")
                shared = load_trie(Path(folder) / "trie")
        else:
            merged = Trie(branch_length, max_bytes)
            merge_tries(merged, [shared])
            shared = merged
    return [shared, own]


@settings(max_examples=examples(40))
@given(
    OPERATIONS,
    st.sampled_from([1, 2, 3, 5, 12]),
    st.sampled_from([None, 1, 2, 8]),
    st.sampled_from(sorted(SINGLE_FROM)),
)
def test_tries_stay_whole_whatever_is_done_to_them(operations, branch_length, times_least, retrieval):
    least = bytes_for(text_trie.least_nodes(branch_length))
    max_bytes = None if times_least is None else times_least * least
    for trie in run(operations, branch_length, max_bytes, Estimator(branch_length, retrieval)):
        check(trie)


@pytest.mark.parametrize(("size", "total"), [(300, 900), (2400, 2400)])
def test_a_trie_without_a_limit_grows(size, total):
    """Twice within one text, if the text is long."""
    trie = Trie(3)
    text = np.random.default_rng(0).integers(0, 1000, total).astype(np.int32)
    first = trie.arrays
    for begin in range(0, len(text), size):
        trie.insert(text[begin : begin + size])
        check(trie)
    assert len(trie.arrays.nodes) > len(first.nodes)
    assert np.concatenate([piece for _, piece in trie.texts()]).tolist() == text.tolist()
