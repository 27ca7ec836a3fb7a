"""Triton models `preprocessing` (text to token ids) and `postprocessing` (back), tensors as in TensorRT-LLM."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from pipeline.errors import UserError
from pipeline.triton_models.python_backend import error_response, hide_torch, parameter, response_of, tensors_of
from pipeline.triton_models.text_codec import TextCodec, load_codec
from pipeline.triton_models.text_tensors import postprocess, preprocess

# The conversion of each model, and the parameter about special tokens.
CONVERSIONS = {
    "preprocessing": (preprocess, "add_special_tokens"),
    "postprocessing": (postprocess, "skip_special_tokens"),
}


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        hide_torch()
        config = json.loads(args["model_config"])
        self._name = config["name"]
        self._convert, option = CONVERSIONS[self._name]
        self._special_tokens = parameter(config, option) == "true"
        self._tokenizer_dir = Path(parameter(config, "tokenizer_dir"))

    @cached_property
    def _codec(self) -> TextCodec:
        """Loaded with the first request: `lookahead_bls` tokenizes by itself, so most servers never get one."""
        return load_codec(self._tokenizer_dir)

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            return response_of(self._convert(self._codec, tensors_of(request), self._special_tokens))
        except UserError as error:
            return error_response(error)
        except Exception as error:  # a bug fails this request, not the others of the batch
            pb_utils.Logger.log_error(f"{self._name} failed: {error!r}")
            return error_response(error)
