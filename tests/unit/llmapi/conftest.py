"""Installs a small stand-in for TensorRT-LLM."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

STAND_INS = Path(__file__).parents[2] / "stand_ins"


@pytest.fixture(autouse=True, scope="module")
def _small_heap() -> None:
    """The end of a model searches for garbage: a third of a second each time, among all that other files have made."""
    gc.freeze()


@pytest.fixture
def tensorrt_llm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(STAND_INS))
    import tensorrt_llm

    yield tensorrt_llm
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorrt_llm"]:
        del sys.modules[name]
    sys.modules.pop("pipeline.llmapi.trie_drafter", None)
