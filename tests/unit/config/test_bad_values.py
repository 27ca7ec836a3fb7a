"""Invalid values: one message each, without a long wait or large memory."""

from __future__ import annotations

import pytest

from pipeline.config.yaml_text import parse_yaml
from tests.unit.config.shipped import faults_of


def test_anchors_that_multiply_are_refused() -> None:
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    with pytest.raises(ValueError, match="has more than 100000 values"):
        parse_yaml("\n".join(["a0: &a0 [x, x, x, x, x, x, x, x, x]", *levels]))


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("server.http_port=99999", "server.http_port: found 99999; should be less than or equal to 65535"),
        ("server.host=nowhere", "server.host: found 'nowhere'; should be an IPv4 address"),
        ("server.host='::1'", "server.host: found '::1'; should be an IPv4 address"),
        ("server.startup_timeout_s=.inf", "server.startup_timeout_s: found inf; should be a finite number"),
        (
            "engine.max_batch_size=1e9",
            "found the text '1e9'; should be a valid integer. Written as a number it is 1000000000",
        ),
        ("engine.max_batch_size='8'", "Written as a number it is 8, without quotes or exponent."),
        ("engine.max_batch_size=1e9999", "engine.max_batch_size: found '1e9999'; should be a valid integer."),
        (
            "server.startup_timeout_s=1e-3",
            "found the text '1e-3'; should be a valid number. Written as a number it is 0.001",
        ),
        ("drafting.sources=3", "drafting.sources: found 3; should be a list."),
        ("drafting.sources.²=1", "drafting.sources.²: does not exist"),
        ("server.startup_timeout_s=.nan", "server.startup_timeout_s: found nan; should be a finite number"),
    ],
)
def test_a_value_out_of_range_is_one_sentence(override: str, expected: str) -> None:
    assert expected in faults_of(override)
