"""Type of the rules of this backend, and helpers that make their faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pipeline.backends.tensorrt_llm.build_context import BuildContext
from pipeline.config.faults import Fault, fault

Rule = Callable[[BuildContext], Iterator[Fault]]


def wrong(key: str, value: object, reason: str, remedy: str = "", *fixes: str) -> Fault:
    """Fault of the setting `key`. value: found there. reason: why it is wrong, as the end of a sentence."""
    found = str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else repr(value)
    return fault(key, f"found {found}; {reason}.", remedy, fixes=fixes)


def misplaced(key: str, value: object, set_elsewhere: str | None, no_use: str | None) -> Fault | None:
    """Fault of an option that must not be set. set_elsewhere: the setting that controls it. no_use: reason not to use
    it. None if both are None."""
    if set_elsewhere is not None:
        return wrong(key, value, f"it is set by {set_elsewhere}", "Remove it here.")
    return None if no_use is None else wrong(key, value, f"not to be used here: {no_use}", "Remove it.")


def setting(name: str) -> str:
    """Key of a setting of the section `tensorrt_llm`."""
    return f"tensorrt_llm.{name}"


def build_flag(name: str) -> str:
    """Key of an option in `tensorrt_llm.build_flags`."""
    return f"tensorrt_llm.build_flags.{name}"


def parameter(name: str) -> str:
    """Key of a parameter in `tensorrt_llm.parameters`."""
    return f"tensorrt_llm.parameters.{name}"
