"""Type of the rules of this backend, and helpers that make their faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from pipeline.backends.tensorrt_llm.build_context import BuildContext
from pipeline.config.faults import Fault, did_you_mean, fault

Rule = Callable[[BuildContext], Iterator[Fault]]


def wrong(key: str, value: object, reason: str, remedy: str = "", *fixes: str) -> Fault:
    """Fault of the setting `key`. value: found there. reason: why it is wrong, as the end of a sentence."""
    found = str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else repr(value)
    return fault(key, f"found {found}; {reason}.", remedy, fixes=fixes)


def not_settable(
    key: str, name: str, value: object, settable: Sequence[str], set_elsewhere: Mapping[str, str]
) -> Fault:
    """Fault of an option that is not among the settable ones. set_elsewhere: the setting that controls others."""
    if name in set_elsewhere:
        return wrong(key, value, f"it is set by {set_elsewhere[name]}", "Remove it here.")
    hint = did_you_mean(name, settable) or f" Known are {', '.join(settable)}."
    return fault(key, f"cannot be set here.{hint}")


def setting(name: str) -> str:
    """Key of a setting of the section `tensorrt_llm`."""
    return f"tensorrt_llm.{name}"


def build_flag(name: str) -> str:
    """Key of an option in `tensorrt_llm.build_flags`."""
    return f"tensorrt_llm.build_flags.{name}"


def parameter(name: str) -> str:
    """Key of a parameter in `tensorrt_llm.parameters`."""
    return f"tensorrt_llm.parameters.{name}"
