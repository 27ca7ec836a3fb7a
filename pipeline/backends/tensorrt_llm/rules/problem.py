"""Rules of this backend: functions that yield what is wrong with a config."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pipeline.backends.tensorrt_llm.case import Case
from pipeline.config.faults import Fault

Rule = Callable[[Case], Iterator[Fault]]


def build_flag(name: str) -> str:
    """Key of an option in `tensorrt_llm.build_flags`."""
    return f"tensorrt_llm.build_flags.{name}"


def parameter(name: str) -> str:
    """Key of a parameter in `tensorrt_llm.parameters`."""
    return f"tensorrt_llm.parameters.{name}"
