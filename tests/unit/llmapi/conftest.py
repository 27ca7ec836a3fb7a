"""Installs a small stand-in for TensorRT-LLM."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

STAND_INS = Path(__file__).parents[2] / "stand_ins"


@pytest.fixture
def tensorrt_llm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(STAND_INS))
    import tensorrt_llm

    yield tensorrt_llm
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorrt_llm"]:
        del sys.modules[name]
    sys.modules.pop("pipeline.llmapi.trie_drafter", None)
