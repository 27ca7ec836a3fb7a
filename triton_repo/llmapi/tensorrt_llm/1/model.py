"""Triton model `tensorrt_llm` over TensorRT-LLM's LLM API (1.3 and later), with drafts from our trie.

Written to the documented contract and NOT RUN with TensorRT-LLM. model.yaml beside it has the arguments of LLM(). The
environment variable LLM_CONFIG_PATH selects another file, as in the stock model.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from pipeline.llmapi.llm_arguments import llm_arguments
from pipeline.llmapi.requests import STOPPED, serve
from pipeline.llmapi.settings import DraftSettings
from pipeline.triton_models.python_backend import CallResponses
from pipeline.triton_models.request_loop import RequestLoop


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        from tensorrt_llm import LLM, SamplingParams  # late, because the import opens the GPUs

        folder = Path(args["model_repository"]) / args["model_version"]
        path = folder / os.environ.get("LLM_CONFIG_PATH", "model.yaml")
        arguments = yaml.safe_load(path.read_text(encoding="utf-8"))
        triton = arguments.pop("triton_config")
        settings = DraftSettings.model_validate_json((folder / "drafts.json").read_bytes())
        period_s = int(triton["cancellation_check_period_ms"]) / 1000
        self._llm = LLM(**llm_arguments(arguments, settings))
        answer = partial(serve, self._llm, SamplingParams, bool(triton["decoupled"]))
        self._loop = RequestLoop(answer, CallResponses(), max_calls=1, check_period_s=period_s, stopped=STOPPED)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self._loop.submit(request)

    def finalize(self) -> None:
        self._loop.close()
        self._llm.shutdown()
