"""Tensors of TensorRT-LLM's Triton models: names, types, shapes, and whether they are optional.

`contract.json` has those of release line 1.2. The served models have these tensors and further optional ones.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
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


def model_contract(model: str) -> ModelContract:
    """The contract of `tensorrt_llm`, `preprocessing`, `postprocessing`, `tensorrt_llm_bls`, `ensemble` or `llmapi`.
    Raises KeyError for any other model."""
    return _contracts()[model]


@cache
def _contracts() -> dict[str, ModelContract]:
    text = resources.files(__package__).joinpath("contract.json").read_text(encoding="utf-8")
    return TypeAdapter(dict[str, ModelContract]).validate_python(json.loads(text)["models"])
