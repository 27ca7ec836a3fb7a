"""Parses YAML to settings, with the line of each key.

Accepts strings, numbers, booleans, null, lists and mappings, with anchors and merged mappings (`<<`). Keys and dates
stay strings as written (`on` is not a boolean key).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import yaml

from pipeline.config.faults import KeyPath

FastDumper = yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper
_TAG = "tag:yaml.org,2002:"
# The loader in C overflows the stack where lists nest some 30,000 deep. A text of this length cannot.
_LONGEST_IN_C = 10_000
# Limit of values with anchors expanded. A config has some hundreds.
_MOST_VALUES = 100_000


@dataclass(slots=True)
class YamlText:
    """A parsed text. data: None for an empty text. lines: line of each key, from 1. repeated: lines of keys that occur
    twice in a mapping. num_values: number of values with anchors expanded."""

    data: Any = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    repeated: list[tuple[KeyPath, int]] = field(default_factory=list)
    num_values: int = 0


class _Loader(yaml.SafeLoader):
    """YAML loader that keeps dates as strings."""


class _FastLoader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """The same loader in C, unless PyYAML was built without libyaml."""


_Loader.yaml_implicit_resolvers = _FastLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{_TAG}timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parse_yaml(text: str) -> YamlText:
    """Parse a text. Raises ValueError, with one line about the fault and its place, if it is not valid."""
    if len(text) <= _LONGEST_IN_C:
        # The loader in Python reads a faulty text again: its messages name what it found.
        with suppress(yaml.YAMLError, ValueError, RecursionError):
            return _parsed(_FastLoader(text))
    try:
        return _parsed(_Loader(text))
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split()).replace('in "<unicode string>", ', "in ")) from error
    except RecursionError as error:
        raise ValueError("lists and mappings are nested too deeply, or an anchor is used inside of itself") from error


def _parsed(loader: _Loader | _FastLoader) -> YamlText:
    result, root = YamlText(), loader.get_single_node()
    if root is not None:
        result.data = _value_of(root, (), loader, result)
    return result


def _fault(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _value_of(node: yaml.Node, at: KeyPath, loader: _Loader | _FastLoader, result: YamlText) -> Any:
    result.num_values += 1
    if result.num_values > _MOST_VALUES:
        text = f"it has more than {_MOST_VALUES} values, as anchors that refer to each other multiply. Use fewer"
        raise _fault(node, text)
    if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
        return [_value_of(child, (*at, index), loader, result) for index, child in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
        return _mapping_of(node, at, loader, result)
    try:
        value = loader.construct_object(node, deep=True)
    except ValueError as error:  # a number with thousands of digits, an invalid date
        raise _fault(node, str(error)) from error
    if value is not None and not isinstance(value, str | int | float):
        raise _fault(node, f"the type {node.tag} is not supported")
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        raise _fault(node, "half of a surrogate pair is not a character")
    if isinstance(value, str) and "\0" in value:
        raise _fault(node, "a NUL character is not supported")
    return value


def _mapping_of(node: yaml.MappingNode, at: KeyPath, loader: _Loader | _FastLoader, result: YamlText) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    merged = [value for key, value in node.value if key.tag == f"{_TAG}merge"]
    # Of several merged mappings the first wins; keys written here win over all.
    parts = [part for value in merged for part in (value.value if isinstance(value, yaml.SequenceNode) else [value])]
    for value in reversed(parts):
        if not isinstance(value, yaml.MappingNode):
            raise _fault(value, "<< merges mappings only")
        mapping |= _value_of(value, at, loader, result)
    own = set()
    for key_node, value_node in node.value:
        if key_node.tag == f"{_TAG}merge":
            continue
        if not isinstance(key_node, yaml.ScalarNode):
            raise _fault(key_node, "a key should be a text")
        here, line = (*at, key_node.value), key_node.start_mark.line + 1
        if here in own:
            result.repeated.append((here, line))
        own.add(here)
        result.lines[here] = line
        mapping[key_node.value] = _value_of(value_node, here, loader, result)
    return mapping
