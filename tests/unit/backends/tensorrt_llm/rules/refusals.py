"""What the tests of each module of rules ask of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pipeline.backends.tensorrt_llm.rules import check, faults_of
from pipeline.backends.tensorrt_llm.rules.problem import Rule
from pipeline.errors import ConfigError
from tests.trt_configs import trt_config, trt_context

# Overrides, the key that is named, and a part of the sentence. They start from llama2-13b under latency (lookahead).
Wrong = tuple[str, str, str]


def assert_refused(rules: Sequence[Rule], overrides: str, key: str, text: str) -> None:
    """Refused by one of these rules, with the key and the whole sentence."""
    context = trt_context(*overrides.split())
    problems = faults_of(context)
    found = [problem for problem in problems if problem.key == key and text in problem.text]
    assert found, problems
    assert found[0] in [problem for rule in rules for problem in rule(context)]
    with pytest.raises(ConfigError) as error:
        check(trt_config("llama2-13b", "latency", *overrides.split()))
    assert f"{key}: {found[0].text}" in str(error.value)


def idle(rules: Sequence[Rule], wrong: Sequence[Wrong]) -> list[str]:
    """The rules that refuse none of these."""
    contexts = [trt_context(*overrides.split()) for overrides, _, _ in wrong]
    return [rule.__name__ for rule in rules if not any(list(rule(context)) for context in contexts)]
