"""The lists of `make mutation` fit the code, which changes more often than the target runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mutation.targets import EQUIVALENT, TARGETS, Target, candidates_of


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.module)
def test_a_target_has_tests_and_its_equivalent_mutants_exist(target: Target) -> None:
    assert candidates_of(target)
    assert target.tests
    assert all(Path(path).exists() for path in target.tests)


def test_equivalent_mutants_are_those_of_targets() -> None:
    assert json.loads(EQUIVALENT.read_text(encoding="utf-8")).keys() <= {target.module for target in TARGETS}
