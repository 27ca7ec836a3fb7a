"""Requests to the models with one response, converted to requests to the decoupled models behind them.

Triton refuses `infer` for a decoupled model, so the model names that TensorRT-LLM's clients call with `infer` belong to
models with one response: `tensorrt_llm_bls` (and `ensemble` over it) passes requests on to `lookahead_bls`,
`tensorrt_llm` to `tensorrt_llm_engine`. Engine and drafts are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.engine.traits import REQUIRED_OUTPUTS
from pipeline.errors import RequestError
from pipeline.repository.names import FRONT_MODEL, TARGET_MODEL
from pipeline.triton_models.sequences import NUM_SEQUENCES, num_sequences
from pipeline.triton_models.tensors import Array, Tensors, flag, require_one_row

# Inputs of the request that stops an engine's request with the same id. Triton needs the required inputs in it.
_ONE = np.ones((1, 1), np.int32)
ENGINE_STOP: Mapping[str, Array] = {
    "input_ids": _ONE,
    "input_lengths": _ONE,
    "request_output_len": _ONE,
    "stop": np.asarray([[True]]),
}


@dataclass(frozen=True, slots=True)
class WorkingModel:
    """A decoupled model that receives the converted requests. stream: name of its input that asks for a stream. stop:
    inputs of a request that stops the request with the same id. outputs: names of the outputs of every response."""

    name: str
    stream: str
    stop: Mapping[str, Array]
    outputs: frozenset[str]


WORKING_MODELS: Mapping[str, WorkingModel] = {
    model.name: model
    for model in (
        WorkingModel(FRONT_MODEL, "stream", {"stop": np.asarray([[True]])}, frozenset({"text_output"})),
        WorkingModel(TARGET_MODEL, "streaming", ENGINE_STOP, frozenset(REQUIRED_OUTPUTS)),
    )
}


def forwarded(tensors: Tensors, model: WorkingModel) -> Tensors:
    """Inputs of the request to `model` that returns the whole output in one response.

    A client that asks for a stream gets the output without the prompt, as in a stream. Any other client gets the prompt
    as well, unless it excludes it, as with TensorRT-LLM's models. Raises RequestError for several rows or several
    outputs, which need a response each."""
    require_one_row(tensors)
    if num_sequences(tensors) > 1:
        raise RequestError(
            f"{NUM_SEQUENCES} is {num_sequences(tensors)}, and this model sends one response; send the request to "
            f"{model.name} over a stream, which answers once per output"
        )
    streamed = flag(tensors, model.stream)
    sent = {name: value for name, value in tensors.items() if name != model.stream}
    if streamed or "exclude_input_in_output" not in sent:
        sent["exclude_input_in_output"] = np.asarray([[streamed]])
    return sent
