"""The trie's kernels read and write by address, so nothing would tell of a step outside. Here they run as plain Python
over accessors that know every array: an address that is none, an array that is gone, and an index outside all fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pipeline.decoding.trie import Trie
from pipeline.decoding.trie.retrieval import Estimator

CHECKED_RUN = Path(__file__).with_name("checked_run.py")


@pytest.mark.parametrize("seed", [0, 1])
def test_no_kernel_reads_or_writes_outside_of_the_arrays_that_live(seed):
    run = subprocess.run(
        [sys.executable, CHECKED_RUN, str(seed), "12"],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "strays caught: 5" in run.stdout


@pytest.mark.parametrize(("max_nodes", "max_depth"), [(0, 4), (-1, 4), (4, 0), (4, -1)])
def test_a_draft_without_room_is_empty_and_touches_nothing(max_nodes, max_depth):
    own = Trie(4)
    own.insert(np.arange(20, dtype=np.int32))
    estimator = Estimator(4)
    assert len(estimator.grow(own, None, "", np.arange(3, dtype=np.int32), max_nodes, max_depth)) == 0
