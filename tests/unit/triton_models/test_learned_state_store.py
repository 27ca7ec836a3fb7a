"""Servers of one checkpoint save their learned state separately, and start with that of all."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pipeline.config.schema import DraftingConfig, LookaheadConfig, TrieDraftConfig
from pipeline.decoding.drafting.drafter import Drafter
from pipeline.decoding.drafting.drafter_factory import create_drafter
from pipeline.decoding.request import StepResult
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import EMPTY_TREE
from pipeline.triton_models import learned_state_store
from pipeline.triton_models.handover import VARIABLE, hand_over, prepare_handover
from pipeline.triton_models.learned_state_store import LearnedStateStore
from tests.logs import Logs
from tests.patience import PATIENCE_S

KEEPS = DraftingConfig(keep_learned_minutes=60)
NAMES = frozenset({"trie"})


@pytest.fixture(autouse=True)
def manifest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """The manifest of the servers' engine."""
    (tmp_path / "manifest.json").touch()
    manifest = SimpleNamespace(fingerprint=SimpleNamespace(checkpoint="sha256:0123"))
    reader = SimpleNamespace(model_validate_json=lambda content: manifest)
    monkeypatch.setattr(learned_state_store, "Manifest", reader)
    return manifest


def new_server(
    tmp_path: Path, drafting: DraftingConfig = KEEPS, instance: str = "bls_0"
) -> tuple[Drafter, LearnedStateStore]:
    drafter = create_drafter([TrieDraftConfig(max_bytes=1 << 20)], LookaheadConfig.of(2, 3, 2), vocab_size=64)
    return drafter, LearnedStateStore(drafter, drafting, tmp_path, tmp_path / "cache", "bls", instance)


def serve(drafter: Drafter, tokens: list[int]) -> None:
    drafter.start("r", np.asarray([1], np.int32), "", NAMES)
    drafter.propose("r", np.asarray([1], np.int32), DraftBudget(4, 3))
    drafter.update("r", StepResult(np.asarray([1], np.int32), EMPTY_TREE, [], tokens, None, None, None))
    drafter.stop("r")


def drafted(drafter: Drafter, context: list[int]) -> set[int]:
    drafter.start("s", np.asarray([1], np.int32), "", NAMES)
    tree = drafter.propose("s", np.asarray(context, np.int32), DraftBudget(8, 4))
    drafter.stop("s")
    return set(tree.token_ids.tolist())


def test_replicas_keep_apart_what_they_learn_and_begin_with_all_of_it(tmp_path: Path) -> None:
    replicas = [new_server(tmp_path) for _ in range(2)]
    for (drafter, state), first in zip(replicas, (10, 20), strict=True):
        serve(drafter, [first, first + 1, first + 2, first + 3])
        state.save()
    del drafter, state
    replicas.clear()  # as a process that ends

    drafter, _ = new_server(tmp_path)
    assert drafted(drafter, [10, 11]) >= {12, 13}
    assert drafted(drafter, [20, 21]) >= {22, 23}


def test_a_server_with_several_processes_hands_over_what_each_has_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All wrote to the same files."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "old"))
    prepare_handover(tmp_path / "old")
    processes = [new_server(tmp_path, DraftingConfig(), name) for name in ("bls_0", "bls_1")]
    for (drafter, _), first in zip(processes, (10, 20), strict=True):
        serve(drafter, [first, first + 1, first + 2, first + 3])
    woken = iter(processes)
    assert hand_over(tmp_path / "old", tmp_path / "new", lambda: next(woken)[1].save_if_due(), PATIENCE_S)

    monkeypatch.setenv(VARIABLE, str(tmp_path / "new"))
    drafter, _ = new_server(tmp_path, DraftingConfig())
    assert drafted(drafter, [10, 11]) >= {12, 13}
    assert drafted(drafter, [20, 21]) >= {22, 23}


def test_a_server_of_another_model_gets_nothing_from_its_predecessor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manifest: SimpleNamespace
) -> None:
    """It took over the trie, with the tokens of another vocabulary."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "old"))
    prepare_handover(tmp_path / "old")
    drafter, store = new_server(tmp_path, DraftingConfig())
    serve(drafter, [10, 11, 12, 13])
    assert hand_over(tmp_path / "old", tmp_path / "new", store.save_if_due, PATIENCE_S)

    monkeypatch.setenv(VARIABLE, str(tmp_path / "new"))
    drafter, _ = new_server(tmp_path, DraftingConfig())
    assert 12 in drafted(drafter, [10, 11])
    manifest.fingerprint.checkpoint = "sha256:4567"
    drafter, _ = new_server(tmp_path, DraftingConfig())
    assert 12 not in drafted(drafter, [10, 11])


def test_a_restart_takes_the_folder_of_the_server_before(tmp_path: Path) -> None:
    for _ in range(2):
        _, state = new_server(tmp_path)
        state.save()
        del state

    assert len(list((tmp_path / "cache").rglob("bls.state"))) == 1


def test_a_folder_that_cannot_be_written_ends_no_server(tmp_path: Path, logs: Logs) -> None:
    (tmp_path / "cache").touch()
    drafter, state = new_server(tmp_path)
    assert "Learned state is not kept" in logs.text
    serve(drafter, [10, 11, 12, 13])
    state.save()
    state.save_if_due()
    assert drafted(drafter, [10, 11]) >= {12, 13}
