"""The refusals of each family of rules, from refusals.yaml. The base is llama2-13b under latency (lookahead)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import yaml

from pipeline.backends.tensorrt_llm.build_context import BuildContext
from pipeline.backends.tensorrt_llm.rules import RULES, Rule, check, faults_of
from pipeline.errors import ConfigError
from tests.trt_configs import trt_context

WRONG: dict[str, list[dict[str, str]]] = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text("utf-8"))
ROWS = [(family, *row.values()) for family, rows in WRONG.items() for row in rows]


def family_of(rule: Rule) -> str:
    return rule.__module__.rpartition(".")[2]


@cache
def context_of(overrides: str) -> BuildContext:
    return trt_context(*overrides.split())


@pytest.mark.parametrize(("family", "overrides", "key", "text"), ROWS, ids=[f"{c[0]}: {c[1][:60]}" for c in ROWS])
def test_a_wrong_combination_is_refused_with_key_value_and_remedy(family, overrides, key, text):
    context = context_of(overrides)
    problems = faults_of(context)
    found = [problem for problem in problems if problem.key == key and text in problem.text]
    assert found, problems
    assert found[0] in [problem for rule in RULES if family_of(rule) == family for problem in rule(context)]
    with pytest.raises(ConfigError) as error:
        check(context.resolved)
    assert f"{key}: {found[0].text}" in str(error.value)


@pytest.mark.parametrize("family", WRONG)
def test_every_rule_refuses_something(family):
    contexts = [context_of(row["overrides"]) for row in WRONG[family]]
    own = [rule for rule in RULES if family_of(rule) == family]
    idle = [rule.__name__ for rule in own if not any(list(rule(context)) for context in contexts)]
    assert idle == []


def test_every_family_of_rules_is_here():
    assert set(map(family_of, RULES)) == set(WRONG)
