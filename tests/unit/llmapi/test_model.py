"""The served model.py against a stand-in for TensorRT-LLM, without a server."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.config.places import places
from pipeline.llmapi.repository import render_llmapi
from pipeline.llmapi.settings import METHODS, Method
from tests.trt_configs import trt_config

CONFIGS = {
    "trie": "UserProvidedDecodingConfig",
    "ngram": "NGramDecodingConfig",
    "suffix_automaton": "SADecodingConfig",
    "none": "NoneType",
}


@pytest.mark.parametrize("takes_text", [False, True], ids=["older release", "newer release"])
@pytest.mark.parametrize("method", METHODS)
def test_every_release_gets_its_arguments_in_a_form_that_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tensorrt_llm: Any, method: Method, takes_text: bool
) -> None:
    import tensorrt_llm.llmapi as llmapi

    monkeypatch.setattr(llmapi, "TAKES_TEXT", takes_text)
    utils = SimpleNamespace(TRITONSERVER_RESPONSE_COMPLETE_FINAL=1)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)
    folder = render_llmapi(trt_config(), method, tmp_path / "repository", places().home / "triton_repo")
    code = runpy.run_path(str(folder / "tensorrt_llm" / "1" / "model.py"))
    model = code["TritonPythonModel"]()
    model.initialize({"model_repository": str(folder / "tensorrt_llm"), "model_version": "1"})
    try:
        llm = model._service._llm
        assert type(llm.speculative_config).__name__ == CONFIGS[method]
        assert "triton_config" not in llm.arguments
        assert llm.arguments["max_batch_size"] == 4
    finally:
        model.finalize()
