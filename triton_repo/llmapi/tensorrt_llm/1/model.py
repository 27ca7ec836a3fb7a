"""Triton model `tensorrt_llm` over TensorRT-LLM's LLM API (1.3 and later), with drafts from our trie.

Written to the documented contract and NOT RUN with TensorRT-LLM. model.yaml beside it holds the arguments of LLM();
LLM_CONFIG_PATH names another, as with the stock model.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils
import yaml

from pipeline.llmapi.service import LlmService
from pipeline.llmapi.settings import DraftSettings
from pipeline.llmapi.speculation import llm_arguments
from pipeline.serving.triton import error_response, response_of, tensors_of

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class Client:
    """One request's way back."""

    def __init__(self, request: Any) -> None:
        self.request_id: str = request.request_id()
        self._sender = request.get_response_sender()

    def send(self, tensors: Any, last: bool) -> None:
        self._sender.send(response_of(tensors), flags=FINAL if last else 0)

    def fail(self, error: Exception) -> None:
        self._sender.send(error_response(error), flags=FINAL)

    def is_gone(self) -> bool:
        return bool(self._sender.is_cancelled())


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        from tensorrt_llm import LLM, SamplingParams  # opens the GPUs, so not before it is needed

        folder = Path(args["model_repository"]) / args["model_version"]
        path = folder / os.environ.get("LLM_CONFIG_PATH", "model.yaml")
        arguments = yaml.safe_load(path.read_text(encoding="utf-8"))
        triton = arguments.pop("triton_config")
        settings = DraftSettings.model_validate_json((folder / "drafts.json").read_bytes())
        period_s = int(triton["cancellation_check_period_ms"]) / 1000
        self._service = LlmService(LLM(**llm_arguments(arguments, settings)), SamplingParams, period_s)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self._service.submit(tensors_of(request), Client(request))

    def finalize(self) -> None:
        self._service.close()
