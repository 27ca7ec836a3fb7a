"""Helpers that make the faults of this backend's rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipeline.backends.tensorrt_llm.release_data import Flag, Option, flag_words
from pipeline.config.faults import Fault, did_you_mean, fault, one_of


def wrong(key: str, value: object, reason: str, remedy: str = "", *fixes: str) -> Fault:
    """Fault of the setting `key`. value: found there. reason: why it is wrong, as the end of a sentence."""
    found = str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else repr(value)
    return fault(key, f"found {found}; {reason}.", remedy, fixes=fixes)


def faults_of_options(
    section: str,
    asked: Mapping[str, bool | int | float | str],
    known: Mapping[str, Option],
    elsewhere: Mapping[str, str],
    no_use: Mapping[str, str],
    unknown: str,
) -> Iterator[Fault]:
    """Faults of the options that the user set in a section: unknown names, wrong values, options that cannot be set.
    elsewhere: options that another setting controls, with that setting. no_use: options that must not be set, with the
    reason. unknown: message for an unknown name."""
    for name, value in asked.items():
        key = f"tensorrt_llm.{section}.{name}"
        if name in elsewhere:
            yield wrong(key, value, f"it is set by {elsewhere[name]}", "Remove it here.")
        elif name in no_use:
            yield wrong(key, value, f"not to be used here: {no_use[name]}", "Remove it.")
        elif name not in known:
            yield fault(key, f"{unknown}{did_you_mean(name, known)}")
        elif right := _right_value(name, known[name], value):
            yield wrong(key, value, f"should be {right}")


def _right_value(name: str, option: Option, value: bool | int | float | str) -> str | None:
    """Description of valid values; None if the value is valid."""
    kind = option.type.split(";")[0]
    if kind in ("bool", "store_true"):
        return None if isinstance(value, bool) else "true or false"
    if isinstance(value, bool):
        return f"{one_of(option.choices)} in quotes" if option.choices else f"a {kind}"
    if kind in ("int", "uint"):
        limit = 1 << (64 if name.endswith("_bytes") else 31)
        fits = isinstance(value, int) and 0 <= value < limit
        return None if fits else f"a whole number from 0 to {limit - 1}"
    if kind.startswith("float"):
        fits = isinstance(value, int | float) and (kind == "float" or 0 <= value <= 1)
        return None if fits else "a number from 0 to 1" if kind != "float" else "a number"
    if kind == "csv int":
        parts = str(value).replace(";", ",").split(",")
        return None if all(part.strip().isdigit() for part in parts) else 'numbers with commas between, e.g. "0,1"'
    words = flag_words(option, value) if isinstance(option, Flag) else (str(value),)
    if not option.choices or set(words) <= {*option.choices}:
        return None
    return one_of([word for word in option.choices if word])
