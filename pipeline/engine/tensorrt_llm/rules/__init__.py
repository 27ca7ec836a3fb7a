"""Every check of a config for TensorRT-LLM: small functions that yield what is wrong. All run before anything is
downloaded or built, and all findings are told at once."""

from __future__ import annotations

from pipeline.config.faults import Fault, raise_faults
from pipeline.config.rules import Conflict
from pipeline.config.schema import ResolvedConfig
from pipeline.engine.tensorrt_llm.case import Case, case_of
from pipeline.engine.tensorrt_llm.rules import device, flags, model, plugins, serving, sizes, speculation
from pipeline.engine.tensorrt_llm.rules.problem import Problem, Rule

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
