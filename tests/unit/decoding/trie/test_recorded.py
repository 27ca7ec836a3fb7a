"""Draft trees recorded with the escape counts of decision 083.
The texts are words of a licence and a random chain with repetitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.decoding.trie import Trie
from pipeline.decoding.trie.estimator import Estimator

RUNS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("recorded.json").read_text())


@pytest.mark.parametrize("number", range(len(RUNS)))
def test_recorded_runs_give_the_recorded_trees(number: int):
    run = RUNS[number]
    shared, own = Trie(run["branch_length"], 1 << 20), Trie(run["branch_length"])
    for namespace, tokens in run["shared"]:
        shared.insert(np.asarray(tokens, np.int32), namespace)
    estimator = Estimator(run["branch_length"], run["retrieval"])
    own.insert(np.asarray(run["prompt"], np.int32))
    shared.insert(np.asarray([], np.int32))
    text = np.asarray(run["prompt"] + run["output"], np.int32)
    expected = {place: rest for place, *rest in run["trees"]}
    place = 0
    while place < len(run["output"]):
        begin = len(run["prompt"]) + place
        step = text[begin : begin + 1 + place % 4]
        tree = estimator.grow(own, shared, "", text[:begin], run["nodes"], run["depth"])
        if place in expected:
            token_ids, parents, probabilities = expected.pop(place)
            assert (tree.token_ids.tolist(), tree.parents.tolist()) == (token_ids, parents), place
            assert tree.probabilities == pytest.approx(probabilities, rel=1e-3)
        estimator.learn(own, shared, "", text[:begin], step)
        for trie in (own, shared):
            trie.extend(step)
        place += len(step)
    assert not expected
