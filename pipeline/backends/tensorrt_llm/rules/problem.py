"""One thing that is wrong with a config for TensorRT-LLM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from pipeline.backends.tensorrt_llm.case import Case


class Problem(NamedTuple):
    """key: the setting, "model." in front for settings of the model. text: what was found, why not, what to do."""

    key: str
    text: str


Rule = Callable[[Case], Iterator[Problem]]


def build_flag(name: str) -> str:
    """Key of an option in `tensorrt_llm.build_flags`."""
    return f"tensorrt_llm.build_flags.{name}"


def parameter(name: str) -> str:
    """Key of a parameter in `tensorrt_llm.parameters`."""
    return f"tensorrt_llm.parameters.{name}"
