"""Every check of a config for TensorRT-LLM: small functions that yield what is wrong. All run before anything is
downloaded or built, and all findings are told at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pipeline.backends.tensorrt_llm.case import Case, case_of
from pipeline.backends.tensorrt_llm.rules import device, flags, model, plugins, serving, sizes, speculation
from pipeline.backends.tensorrt_llm.rules.problem import Rule
from pipeline.config.faults import Fault, fault, raise_faults
from pipeline.config.schema import ProfileConfig, ResolvedConfig

RULES: tuple[Rule, ...] = (
    *model.RULES,
    *device.RULES,
    *sizes.RULES,
    *speculation.RULES,
    *flags.RULES,
    *plugins.RULES,
    *serving.RULES,
)
# The rules that ask whether a value is one of its key at all.
_READING: tuple[Rule, ...] = (flags.known_flags, serving.known_parameters)


def faults_of(case: Case) -> list[Fault]:
    """Everything that is wrong, each thing once. A value that its key cannot have is not judged further."""
    unreadable = {found.key for rule in _READING for found in rule(case)}
    found = [each for rule in RULES for each in rule(case) if rule in _READING or each.key not in unreadable]
    return list(dict.fromkeys(found))


def check(resolved: ResolvedConfig) -> Case:
    """The case, if nothing is wrong with it; else ConfigError with all faults."""
    case = case_of(resolved)
    names = {True: f"model {resolved.model.name}", False: f"profile {resolved.profile.name}"}
    raise_faults([replace(each, where=names[each.path[0] == "model"]) for each in faults_of(case)])
    return case


def faults_of_profile(profile: ProfileConfig) -> Iterator[Fault]:
    """Settings of a profile that are for other backends."""
    if profile.device == "cpu":
        yield fault(
            "device",
            "found 'cpu'; backend tensorrt_llm needs a GPU.",
            "Use backend: torch on a CPU.",
            uses=("device", "backend"),
        )
    if profile.engine.quantization != "none":
        yield fault(
            "engine.quantization",
            f"found '{profile.engine.quantization}', a format of the torch backend.",
            "Use 'none' and, for the same on TensorRT-LLM, tensorrt_llm.quantization: int8_wo.",
            uses=("engine.quantization", "backend"),
        )
    if profile.engine.lookahead_parallel > 1:
        yield fault(
            "engine.lookahead_parallel",
            f"found {profile.engine.lookahead_parallel}; TensorRT-LLM has no lookahead parallelism.",
            "Use 1, or backend: torch.",
            uses=("engine.lookahead_parallel", "backend"),
        )
