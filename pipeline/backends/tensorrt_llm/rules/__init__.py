"""Checks of a config for TensorRT-LLM. All run before a download or build, and all faults are reported together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pipeline.backends.tensorrt_llm.build_context import BuildContext, build_context_of
from pipeline.backends.tensorrt_llm.rules import device, draft_modes, flags, model, serving
from pipeline.backends.tensorrt_llm.rules.problem import Rule, wrong
from pipeline.config.faults import Fault, raise_faults
from pipeline.config.hardware import Hardware
from pipeline.config.schema import ProfileConfig, ResolvedConfig

RULES: tuple[Rule, ...] = (
    *model.RULES,
    *device.RULES,
    *draft_modes.RULES,
    *flags.RULES,
    *serving.RULES,
)
# Rules that check single values: names and types.
_READING: tuple[Rule, ...] = (flags.known_flags, serving.known_parameters)


def faults_of(context: BuildContext) -> list[Fault]:
    """All faults, without duplicates. Other rules skip a key whose name or value is invalid."""
    unreadable = {found.key for rule in _READING for found in rule(context)}
    found = [each for rule in RULES for each in rule(context) if rule in _READING or each.key not in unreadable]
    return list(dict.fromkeys(found))


def check(resolved: ResolvedConfig) -> BuildContext:
    """Make the context of a config. Raises ConfigError with all faults."""
    context = build_context_of(resolved)
    names = {True: f"model {resolved.model.name}", False: f"profile {resolved.profile.name}"}
    raise_faults([replace(each, where=names[each.path[0] == "model"]) for each in faults_of(context)])
    return context


def faults_of_profile(profile: ProfileConfig, hardware: Hardware | None = None) -> Iterator[Fault]:
    """Faults of settings that only work with other backends."""
    engine, found = profile.engine, list[tuple[str, object, str, str]]()
    if profile.device == "cpu":
        found.append(("device", profile.device, "backend tensorrt_llm needs a GPU", "on a CPU"))
    if engine.quantization != "none":
        same = "or, for TensorRT-LLM, 'none' and tensorrt_llm.quantization: int8_wo"
        found.append(("engine.quantization", engine.quantization, "a format of the torch backend", same))
    if engine.lookahead_parallel != 1:
        reason = "TensorRT-LLM has no lookahead parallelism"
        found.append(("engine.lookahead_parallel", engine.lookahead_parallel, reason, "or 1"))
    for key, value, reason, remedy in found:
        yield replace(wrong(key, value, reason, f"Use backend: torch {remedy}."), uses=(key, "backend"))
