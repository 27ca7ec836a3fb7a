"""Learned state is saved and restored; damaged or foreign arrays are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.config.schema import LookaheadConfig, RecyclingDraftConfig, TrieDraftConfig
from pipeline.decoding.drafting.drafter import Drafter
from pipeline.decoding.drafting.drafter_factory import create_drafter
from pipeline.decoding.drafting.learned_state import load_arrays, save_arrays
from pipeline.decoding.request import StepResult
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import DraftTree, agreeing_path
from pipeline.errors import UserError
from tests.logs import Logs

VOCAB = 40
TEXT = np.asarray([1, 2, 3, 4, 5, 6, 7, 8], np.int32)
NAMES = frozenset({"trie", "recycling"})


def new_drafter(top_k: int = 2) -> Drafter:
    lookahead = LookaheadConfig.of(1, 1, 0)
    return create_drafter([TrieDraftConfig(max_bytes=1 << 16), RecyclingDraftConfig(top_k=top_k)], lookahead, VOCAB)


def serve(drafter: Drafter, namespace: str = "") -> None:
    drafter.start("r", TEXT[:1], namespace, NAMES)
    position = 1
    while position < len(TEXT):
        tree = drafter.propose("r", TEXT[:position], DraftBudget(4, 3))
        nodes = agreeing_path(tree, TEXT[position:-1].tolist())
        emitted = TEXT[position : position + len(nodes) + 1].tolist()
        top_ids = np.tile(np.asarray([TEXT[position], 30], np.int32), (len(tree) + 1, 1))
        top_probs = np.full(top_ids.shape, 0.4, np.float32)
        drafter.update("r", StepResult(TEXT[:position], tree, nodes, emitted, None, top_ids, top_probs))
        position += len(emitted)
    drafter.stop("r")


def proposed(drafter: Drafter, namespace: str = "") -> DraftTree:
    """The draft for another request."""
    drafter.start("s", TEXT[:1], namespace, NAMES)
    tree = drafter.propose("s", TEXT[:2], DraftBudget(24, 4))
    drafter.stop("s")
    return tree


def foreseen(drafter: Drafter, namespace: str = "") -> list[int]:
    """The tokens of the text that a draft for another request predicts."""
    tree = proposed(drafter, namespace)
    tokens: list[int] = tree.token_ids[agreeing_path(tree, TEXT[2:].tolist())].tolist()
    return tokens


def test_a_new_drafter_goes_on_where_the_old_one_ended(tmp_path: Path) -> None:
    old, new = new_drafter(), new_drafter()
    for _ in range(3):
        serve(old)
    old.save_learned(tmp_path / "state", "engine", "model a")
    assert not foreseen(new)
    new.load_learned(tmp_path / "state", "engine", "model a")
    assert foreseen(new) == foreseen(old) != []
    old_tree, new_tree = proposed(old), proposed(new)
    assert new_tree.token_ids.tolist() == old_tree.token_ids.tolist()
    # Weights and calibration are as they were.
    assert new_tree.probabilities == pytest.approx(old_tree.probabilities)
    assert {path.name for path in (tmp_path / "state").iterdir()} == {
        "engine.state", "recycling.state", "trie.snapshot", "trie.state"
    }  # fmt: skip
    assert not foreseen(new, "another tenant")
    new.require_sound()


def test_nothing_kept_is_a_fresh_start(tmp_path: Path) -> None:
    drafter = new_drafter()
    drafter.load_learned(tmp_path / "nowhere", "engine", "model a")
    drafter.require_sound()


@pytest.mark.parametrize("name", ["engine.state", "recycling.state", "trie.snapshot", "trie.state"])
def test_damage_costs_what_was_learnt_and_nothing_else(tmp_path: Path, name: str, logs: Logs) -> None:
    old = new_drafter()
    serve(old)
    old.save_learned(tmp_path, "engine", "model a")
    path = tmp_path / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    new = new_drafter()
    new.load_learned(tmp_path, "engine", "model a")
    assert len(logs.records) == 1, logs.text
    (record,) = logs.records  # a sentence, and no failure of the source
    assert name in record.message
    assert record.exc_info is None
    assert not any(new.failures.values())
    serve(new)


def test_a_changed_byte_of_an_array_is_refused(tmp_path: Path) -> None:
    path, arrays = tmp_path / "new" / "folder" / "file", {"a": np.arange(3)}
    for _ in range(2):
        save_arrays(path, arrays, "model")
    assert load_arrays(path, arrays, "model")["a"].tolist() == [0, 1, 2]
    content = bytearray(path.read_bytes())
    content[content.index(np.arange(3).tobytes())] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="is damaged"):
        load_arrays(path, arrays, "model")


def test_arrays_of_another_model_or_shape_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.state"
    arrays = {"a": np.arange(3.0)}
    save_arrays(path, arrays, "model a")
    assert load_arrays(path, arrays, "model a")["a"].tolist() == [0, 1, 2]
    with pytest.raises(UserError, match="another model"):
        load_arrays(path, arrays, "model b")
    with pytest.raises(UserError, match="other draft sources"):
        load_arrays(path, {"a": np.arange(4.0)}, "model a")
    with pytest.raises(UserError, match="cannot be read"):
        load_arrays(tmp_path / "b.state", arrays, "model a")
    path.write_bytes(b"PK")
    with pytest.raises(UserError, match="damaged"):
        load_arrays(path, arrays, "model a")
