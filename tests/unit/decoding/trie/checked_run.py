"""Run by test_bounds.py, in a process of its own with NUMBA_DISABLE_JIT=1: random operations on tries of all shapes,
every access by address checked. Arguments: seed, number of rounds."""

from __future__ import annotations

import itertools
import random
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.decoding.trie import (
    contexts,
    estimate,
    growth,
    kernels,
    layout,
    learning,
    memory,
    nodes,
    retrieval,
    snapshot,
    structure,
    workspace,
)

# Address of the first element of each array that lives: the array, weakly, as its death must show.
regions: dict[int, Any] = {}
num_checked = itertools.count()


def watch(array: np.ndarray) -> None:
    address = int(array.ctypes.data)
    flat = array.reshape(-1)
    # The owner dies with the last view that the trie keeps; the flat view would keep it alive.
    regions[address] = (weakref.ref(array), flat.dtype, len(flat))


def element(address: int, index: int, kind: type) -> tuple[np.ndarray, int]:
    next(num_checked)
    assert int(address) in regions, f"address {address} is no array"
    reference, dtype, length = regions[int(address)]
    array = reference()
    assert array is not None, f"address {address} is an array that is gone"
    assert 0 <= int(index) < length, f"index {index} in an array of {length}"
    assert dtype == np.dtype(kind) or dtype.itemsize == np.dtype(kind).itemsize == 4, f"{kind} in an array of {dtype}"
    return array.reshape(-1), int(index)


def loader(kind: type) -> Callable[[int, int], Any]:
    def load(address: int, index: int) -> Any:
        array, place = element(address, index, kind)
        return int(array[place]) if kind is not np.float32 else array[place : place + 1].view(np.float32)[0]

    return load


def storer(kind: type) -> Callable[[int, int, Any], None]:
    def store(address: int, index: int, value: Any) -> None:
        array, place = element(address, index, kind)
        array[place : place + 1].view(kind)[0] = value

    return store


def prefetch(address: int) -> None:
    """Asking early for memory that is not there does no harm, but would be a mistake."""
    sizes = {begin: length * dtype.itemsize for begin, (_, dtype, length) in regions.items()}
    assert any(begin <= address < begin + size for begin, size in sizes.items()), f"address {address} lies in no array"


checked: dict[str, Any] = {
    "load32": loader(np.int32),
    "store32": storer(np.int32),
    "load64": loader(np.int64),
    "store64": storer(np.int64),
    "load_float": loader(np.float32),
    "store_float": storer(np.float32),
    "prefetch": prefetch,
    "int64": int,
}
for module in (contexts, estimate, growth, kernels, layout, learning, memory, nodes, workspace):
    for name in checked.keys() & vars(module).keys():
        setattr(module, name, checked[name])


def watched_arrays(*arguments: Any) -> layout.TrieArrays:
    arrays = layout.empty_arrays(*arguments)
    for array in arrays:
        watch(array)
    return arrays


def watched_workspace(num_rows: int, orders: int) -> Any:
    """As the real one, but each part is an array by itself, so that no part can run into the next."""
    block, numbers = workspace.new_workspace(num_rows, orders)
    starts = (numbers[:-1] - numbers[0]) // 4
    parts = [np.full(size, 7, np.int32) for size in np.diff([*starts.tolist(), len(block)])]
    for part in parts:
        watch(part)
    return parts, np.asarray([*(part.ctypes.data for part in parts), orders], np.int64)


structure.empty_arrays = snapshot.empty_arrays = watched_arrays
retrieval.new_workspace = watched_workspace


def tokens_of(rng: random.Random, max_len: int) -> np.ndarray:
    width = rng.choice([1, 2, 4, 40, 1 << 20])
    one = [rng.randrange(width) for _ in range(rng.randint(0, max_len))]
    return np.asarray(one * rng.randint(1, 3), np.int32)


def round_trip(trie: structure.Trie) -> structure.Trie:
    with tempfile.TemporaryDirectory() as folder:
        snapshot.save_trie(trie, Path(folder) / "trie")
        return snapshot.load_trie(Path(folder) / "trie")


def one_round(rng: random.Random) -> None:
    branch = rng.choice([1, 2, 3, 5, 12])
    least = layout.bytes_for(structure._least_nodes(branch))
    bound = rng.choice([None, least, least * 2, 1 << 16])
    structure.FIRST_NODES = rng.choice([1, 64])
    shared, own = structure.Trie(branch, bound), structure.Trie(branch)
    estimator = retrieval.Estimator(branch, rng.choice(["hierarchical", "parallel", "single"]))
    streams = [shared.open(rng.choice("ab")) for _ in range(rng.randint(0, 3))]
    for _ in range(30):
        what = rng.choice("iiiaaaaagggggllpornsm")
        text, name = tokens_of(rng, 20), rng.choice("abc")
        if what == "i":
            shared.insert(text, name)
        elif what == "a" and streams:
            rng.choice(streams).append(text)
        elif what == "g":
            context = text if rng.random() < 0.5 else np.tile(text, 4)
            who = rng.choice([shared, None])
            estimator.grow(own, who, name, context, rng.choice([1, 2, 16, 64, 128]), rng.choice([1, 4, 32]))
        elif what == "l":
            estimator.learn(own, shared, name, text, tokens_of(rng, 8))
        elif what == "o":
            own.insert(text)
        elif what == "p":
            rng.choice([shared, own]).prune()
        elif what == "r":
            shared.remove(name)
        elif what == "n":
            for number in range(20):
                shared.insert(text[:2], str(number))
        elif what == "s":
            shared = round_trip(shared)
            streams = [shared.open(name)]
        elif what == "m":
            other = structure.Trie(branch, bound)
            other.merge(shared)
            shared, streams = other, []
    shared.check()
    own.check()


def strays_caught() -> int:
    """The checks see what they are for."""
    array = np.zeros(4, np.int32)
    gone = np.zeros(4, np.int32)
    watch(array)
    watch(gone)
    begin, lost = int(array.ctypes.data), int(gone.ctypes.data)
    del gone
    strays = ((begin, -1), (begin, 4), (begin + 4, 0), (lost, 0), (0, 0))
    return sum(fails(address, index) for address, index in strays)


def fails(address: int, index: int) -> bool:
    try:
        memory.load32(address, index)
    except AssertionError:
        return True
    return False


if __name__ == "__main__":
    # The hash is meant to overflow.
    warnings.filterwarnings("ignore", "overflow encountered", RuntimeWarning)
    print("strays caught:", strays_caught())
    for number in range(int(sys.argv[2])):
        # The round under way is the last one named if it fails.
        print("round", number)
        one_round(random.Random(f"{sys.argv[1]} {number}"))
    print("accesses:", next(num_checked))
