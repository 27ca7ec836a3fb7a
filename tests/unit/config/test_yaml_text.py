"""Parsing of YAML texts, and refused ones."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator

import pytest
import yaml

from pipeline.config import yaml_text
from pipeline.config.yaml_text import parse_yaml


def test_values_keys_and_lines() -> None:
    found = parse_yaml("\ufeffa:\n  on: [1, 2.5, true, ~, no]\n  2020-01-01: 2020-01-01\n1: {b: x}\n")
    assert found.data == {"a": {"on": [1, 2.5, True, None, False], "2020-01-01": "2020-01-01"}, "1": {"b": "x"}}
    assert found.lines == {("a",): 1, ("a", "on"): 2, ("a", "2020-01-01"): 3, ("1",): 4, ("1", "b"): 4}
    assert not found.repeated


def test_without_libyaml_the_loader_and_the_dumper_are_those_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml, "__with_libyaml__", False)
    for name in ("CSafeLoader", "CSafeDumper"):
        monkeypatch.delattr(yaml, name, raising=False)
    module = runpy.run_path(yaml_text.__file__)

    assert module["parse_yaml"]("a: [1, 2020-01-01]").data == {"a": [1, "2020-01-01"]}
    assert yaml.dump({"b": 1, "a": "ä"}, Dumper=module["FastDumper"], sort_keys=False) == 'b: 1\na: "\\xE4"\n'


@pytest.mark.parametrize("text", ["", "# nothing\n", "~", "---\n...\n"])
def test_nothing(text: str) -> None:
    assert parse_yaml(text).data is None


def test_merges_yield_to_what_is_written_in_their_place() -> None:
    found = parse_yaml("a: &a {x: 1, y: 1}\nb: &b {x: 2, z: 2}\nc:\n  z: 3\n  <<: [*a, *b]\nd: *a\n")
    assert found.data["c"] == {"x": 1, "y": 1, "z": 3}
    assert found.data["d"] == {"x": 1, "y": 1}
    assert found.lines["c", "z"] == 4
    assert not found.repeated


def test_repeated_keys_are_reported_with_their_line() -> None:
    assert parse_yaml("a: 1\nb:\n  c: 1\n  c: 2\na: 3\n").repeated == [(("b", "c"), 4), (("a",), 5)]


@pytest.fixture
def few_frames() -> Iterator[None]:
    """A lower limit of recursion: the loader in Python takes a second to get to the usual one."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(300)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:\tb\n\tc: d", "cannot start any token in line 1, column 3"),
        ("a: &x [*x]", "an anchor is used inside of itself"),
        ("a: &x {b: *x}", "an anchor is used inside of itself"),
        ("a: " + 3000 * "[" + 3000 * "]", "nested too deeply"),
        ("a: " + 50_000 * "[", "nested too deeply"),  # overflows the stack of the loader in C
        ("a: *x", "found undefined alias 'x'"),
        ("a: b\0", "unacceptable character #x0000"),
        ("a: " + 5000 * "9", "Exceeds the limit"),
        ("a: !!timestamp 2020-99-99", "month must be in 1..12"),
        ("a: !!timestamp 2020-01-01", "is not supported in line 1"),
        ("a: !!binary aGk=", "is not supported in line 1"),
        ("a: !!set {b, c}", "is not supported in line 1"),
        ("a: !!python/object/apply:os.system [id]", "could not determine a constructor"),
        ("a: !mine {b: c}", "could not determine a constructor"),
        ("? [a]\n: b", "a key should be a text in line 1, column 3"),
        ("a: {<<: b}", "<< merges mappings only in line 1, column 9"),
        ('a: "\\ud800"', "half of a surrogate pair"),
        ('a: ["\\0"]', "a NUL character is not supported in line 1, column 5"),
        ("a: 1\n---\nb: 2", "expected a single document"),
    ],
)
def test_what_no_config_can_mean_is_refused_in_one_line(text: str, message: str, few_frames: None) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        parse_yaml(text)
    assert "\n" not in str(caught.value)


def test_anchors_that_multiply_are_refused() -> None:
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    with pytest.raises(ValueError, match="has more than 100000 values"):
        parse_yaml("\n".join(["a0: &a0 [x, x, x, x, x, x, x, x, x]", *levels]))
