"""Every check of a config for TensorRT-LLM: small functions that yield what is wrong. All run before anything is
downloaded or built, and all findings are told at once."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.backends.tensorrt_llm.case import Case, case_of
from pipeline.backends.tensorrt_llm.rules import device, flags, model, plugins, serving, sizes, speculation
from pipeline.backends.tensorrt_llm.rules.problem import Problem, Rule
from pipeline.config.faults import Fault, raise_faults
from pipeline.config.rules import Conflict
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


def problems_of(case: Case) -> list[Problem]:
    """Everything that is wrong, each thing once. A value that its key cannot have is not judged further."""
    unreadable = {problem.key for rule in _READING for problem in rule(case)}
    found = [problem for rule in RULES for problem in rule(case) if rule in _READING or problem.key not in unreadable]
    return list(dict.fromkeys(found))


def conflicts_of(resolved: ResolvedConfig) -> list[Conflict]:
    """Everything that is wrong, as `resolve_config` wants it."""
    return [Conflict(key, (key,), text) for key, text in problems_of(case_of(resolved))]


def check(resolved: ResolvedConfig) -> Case:
    """The case, if nothing is wrong with it; else ConfigError with all faults."""
    case = case_of(resolved)
    raise_faults([_fault(problem, resolved) for problem in problems_of(case)])
    return case


def _fault(problem: Problem, resolved: ResolvedConfig) -> Fault:
    path = tuple(problem.key.split("."))
    where = f"model {resolved.model.name}" if path[0] == "model" else f"profile {resolved.profile.name}"
    return Fault(where, path, problem.text)


def conflicts_of_profile(profile: ProfileConfig) -> Iterator[Conflict]:
    """Settings of a profile that are for other backends."""
    if profile.device == "cpu":
        yield Conflict(
            "device",
            ("device", "backend"),
            "found 'cpu'; backend tensorrt_llm needs a GPU. Use backend: torch on a CPU.",
        )
    if profile.engine.quantization != "none":
        yield Conflict(
            "engine.quantization",
            ("engine.quantization", "backend"),
            f"found '{profile.engine.quantization}', a format of the torch backend. Use 'none' and, for the same on "
            "TensorRT-LLM, tensorrt_llm.quantization: int8_wo.",
        )
    if profile.engine.lookahead_parallel > 1:
        yield Conflict(
            "engine.lookahead_parallel",
            ("engine.lookahead_parallel", "backend"),
            f"found {profile.engine.lookahead_parallel}; TensorRT-LLM has no lookahead parallelism. Use 1, or "
            "backend: torch.",
        )
