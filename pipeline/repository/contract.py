"""Tensors of TensorRT-LLM's Triton models: names, types, shapes, and whether they are optional.

`contract.json` has those of release line 1.2. The served models have these tensors and further optional ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from pydantic import TypeAdapter


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output of a Triton model. dtype: e.g. "TYPE_INT32". dims: shape without the batch axis; -1 for a
    variable length. reshape: shape that the backend receives instead of dims; None for dims. ragged: whether rows of a
    batch may differ in length."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    optional: bool = False
    reshape: tuple[int, ...] | None = None
    ragged: bool = False


@dataclass(frozen=True, slots=True)
class ModelContract:
    """Inputs, outputs and parameters of one model of TensorRT-LLM's repository."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    parameters: frozenset[str]
    required_parameters: frozenset[str] = frozenset()


# Element types that depend on the engine, with the values for an engine with float32 logits.
ENGINE_DTYPES: Mapping[str, str] = {
    "${logits_datatype}": "TYPE_FP32",
    "${encoder_input_features_data_type}": "TYPE_FP16",
    "${prompt_embedding_table_data_type}": "TYPE_FP16",
}


def model_contract(model: str, dtypes: Mapping[str, str] = ENGINE_DTYPES) -> ModelContract:
    """The contract of `tensorrt_llm`, `preprocessing`, `postprocessing`, `tensorrt_llm_bls`, `ensemble` or `llmapi`.

    dtypes: Triton type for each element type that depends on the engine. Raises KeyError for any other model.
    """
    contract = _contracts()[model]

    def with_dtype(tensor: Tensor) -> Tensor:
        return replace(tensor, dtype=dtypes[tensor.dtype]) if tensor.dtype.startswith("$") else tensor

    return replace(
        contract,
        inputs=tuple(map(with_dtype, contract.inputs)),
        outputs=tuple(map(with_dtype, contract.outputs)),
    )


@cache
def _contracts() -> dict[str, ModelContract]:
    text = resources.files(__package__).joinpath("contract.json").read_text(encoding="utf-8")
    return TypeAdapter(dict[str, ModelContract]).validate_python(json.loads(text)["models"])
