"""Converts a checkpoint's config.json to the format that TensorRT-LLM's converters read.

The converters run with transformers 4.57, which reads `rope_theta` and `rope_scaling` at top level. transformers 5
saves both inside `rope_parameters`; a converter would then silently use a base of 10000.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.errors import CheckpointError

# Entries of rope_parameters that are at top level in the older format.
_TOP_LEVEL = ("rope_theta", "partial_rotary_factor")
_PLAIN_TYPES = (None, "default")


def normalized(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a copy of config with RoPE settings and dtype at top level. where: name of the file in messages. Raises
    CheckpointError if the two formats contradict each other, or if the older one cannot express the settings."""
    result = dict(config)
    rope = config.get("rope_parameters")
    if rope:
        if not isinstance(rope, Mapping):
            raise CheckpointError(f"{where}: rope_parameters should be an object; found {rope!r}.")
        for name, value in _older_form(rope, where).items():
            if config.get(name) not in (None, value):
                raise CheckpointError(
                    f"{where}: {name} is {config[name]!r}, but rope_parameters has {value!r}. Correct the "
                    "checkpoint's config.json."
                )
            result[name] = value
    if "dtype" in config:
        result.setdefault("torch_dtype", config["dtype"])
    return result


def expected_rotary(config: Mapping[str, Any]) -> dict[str, Any]:
    """Expected RoPE settings of a converted checkpoint: rotary_base if the config has it, and the factor of
    rotary_scaling. config: normalized."""
    expected: dict[str, Any] = {}
    if config.get("rope_theta") is not None:
        expected["rotary_base"] = float(config["rope_theta"])
    scaling = config.get("rope_scaling")
    if isinstance(scaling, Mapping) and scaling.get("factor") is not None:
        expected["rotary_scaling"] = {"factor": float(scaling["factor"])}
    return expected


def _older_form(rope: Mapping[str, Any], where: str) -> dict[str, Any]:
    inner = {name: value for name, value in rope.items() if isinstance(value, Mapping)}
    if not inner:
        return _flat(rope)
    # One entry per kind of layer. Only Gemma 3 has an older format for that; in other models all kinds must agree.
    forms = {name: _flat(value) for name, value in inner.items()}
    if set(inner) == {"full_attention", "sliding_attention"}:
        full, sliding = forms["full_attention"], forms["sliding_attention"]
        if full != sliding and "rope_scaling" not in sliding and "rope_theta" in sliding:
            return {**full, "rope_local_base_freq": sliding["rope_theta"]}
    first, *others = forms.values()
    if any(other != first for other in others):
        raise CheckpointError(
            f"{where}: rope_parameters differ between layers ({', '.join(inner)}), which the converters cannot read. "
            "Use backend: torch."
        )
    return first


def _flat(rope: Mapping[str, Any]) -> dict[str, Any]:
    older = {name: rope[name] for name in _TOP_LEVEL if rope.get(name) is not None}
    kind = rope.get("rope_type", rope.get("type"))
    if kind not in _PLAIN_TYPES:
        older["rope_scaling"] = {name: value for name, value in rope.items() if name not in _TOP_LEVEL}
    return older
