"""The served model.py against a stand-in for TensorRT-LLM, without a server."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any, get_args

import pytest

from pipeline.config.folders import folders
from pipeline.llmapi import Method
from pipeline.llmapi.repository import render_llmapi
from pipeline.llmapi.settings import draft_settings, model_yaml
from tests.trt_configs import trt_config

CONFIGS = {
    "auto": "SADecodingConfig",
    "trie": "UserProvidedDecodingConfig",
    "ngram": "NGramDecodingConfig",
    "suffix_automaton": "SADecodingConfig",
    "none": "NoneType",
}


@pytest.mark.usefixtures("triton_backend")
@pytest.mark.parametrize("takes_text", [False, True], ids=["older release", "newer release"])
@pytest.mark.parametrize("method", get_args(Method))
def test_every_release_gets_its_arguments_in_a_form_that_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tensorrt_llm: Any, method: Method, takes_text: bool
) -> None:
    import tensorrt_llm.llmapi as llmapi

    monkeypatch.setattr(llmapi, "TAKES_TEXT", takes_text)
    folder = render_llmapi(trt_config(), method, tmp_path / "repository", folders().home / "triton_repo")
    code = runpy.run_path(str(folder / "tensorrt_llm" / "1" / "model.py"))
    model = code["TritonPythonModel"]()
    model.initialize({"model_repository": str(folder / "tensorrt_llm"), "model_version": "1"})
    try:
        llm = model._llm
        assert type(llm.speculative_config).__name__ == CONFIGS[method]
        assert "triton_config" not in llm.arguments
        # Drafts that are made on the GPU inside the pass go with the overlap scheduler.
        on_host = method in ("trie", "ngram")
        assert llm.arguments.get("disable_overlap_scheduler", False) is on_host
        assert llm.arguments["max_batch_size"] == 4
    finally:
        model.finalize()


@pytest.mark.parametrize(
    ("method", "missing", "config"),
    [
        ("auto", ["SADecodingConfig"], "UserProvidedDecodingConfig"),
        ("auto", ["SADecodingConfig", "UserProvidedDecodingConfig"], "NGramDecodingConfig"),
        ("suffix_automaton", ["SADecodingConfig"], "NGramDecodingConfig"),
        ("trie", ["UserProvidedDecodingConfig"], "NGramDecodingConfig"),
    ],
)
def test_a_release_without_the_drafts_that_are_asked_for_gets_the_next_best(
    monkeypatch: pytest.MonkeyPatch, tensorrt_llm: Any, method: Method, missing: list[str], config: str
) -> None:
    import tensorrt_llm.llmapi as llmapi

    from pipeline.llmapi.llm_arguments import llm_arguments

    for name in missing:
        monkeypatch.delattr(llmapi, name)
    settings = draft_settings(trt_config(), method)
    arguments = llm_arguments(model_yaml(trt_config(), settings), settings)

    assert type(arguments["speculative_config"]).__name__ == config
    assert arguments["disable_overlap_scheduler"]
