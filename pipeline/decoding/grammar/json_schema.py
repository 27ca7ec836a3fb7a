"""Prepares JSON schemas for llguidance: refuses objects that are too large, and removes unsupported patterns where the
schema permits that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pipeline.errors import RequestError

# llguidance's parser has a limit of 2,000 entries for one place of a text. At the start of an object each optional
# property up to the next required one takes four. Compilation takes a time of the square of their number: 29 s for
# 7,000, and 0.03 s for this number.
MAX_OPTIONAL_PROPERTIES = 480

# Keywords whose value is an object from names to schemas, and those whose value is data.
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_DATA = ("const", "enum", "default", "examples")
# Look-around, back references, and all that can hide them: escaped characters and classes of characters.
_PARTS = re.compile(
    r"\\(?:(?P<reference>[1-9]|k[<{'])|.?)|\[(?:\\.?|[^\]\\])*(?:\]|\Z)|\(\?(?P<look>=|!|<=|<!)", re.DOTALL
)


def require_few_optional(schema: Any) -> None:
    """Raise RequestError if an object has more than `MAX_OPTIONAL_PROPERTIES` optional properties in a row, for which
    llguidance would end the output at the start of the object."""
    for node in _nodes(schema):
        properties, required = node.get("properties"), node.get("required")
        if not isinstance(properties, dict) or len(properties) <= MAX_OPTIONAL_PROPERTIES:
            continue
        names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
        longest = length = 0
        for name in properties:
            length = 0 if name in names else length + 1
            longest = max(longest, length)
        if longest > MAX_OPTIONAL_PROPERTIES:
            raise RequestError(
                f"an object of the JSON schema has {longest} optional properties in a row; at most "
                f"{MAX_OPTIONAL_PROPERTIES} can be compiled; make some of them required, or move them to objects inside"
            )


def drop_unsupported_patterns(schema: Any) -> bool:
    """Remove regular expressions with look-around or back references, in place, from a schema that has "lenient" in its
    rules: llguidance then ignores only other keywords that it does not support. Returns whether there were any."""
    rules = schema.get("x-guidance") if isinstance(schema, dict) else None
    if not isinstance(rules, dict) or not rules.get("lenient"):
        return False
    has_changed = False
    for node in _nodes(schema):
        if _is_unsupported(node.get("pattern")):
            del node["pattern"]
            has_changed = True
        if isinstance(by_pattern := node.get("patternProperties"), dict):
            for pattern in list(filter(_is_unsupported, by_pattern)):
                del by_pattern[pattern]
                has_changed = True
    return has_changed


def _is_unsupported(pattern: object) -> bool:
    return isinstance(pattern, str) and any(part["look"] or part["reference"] for part in _PARTS.finditer(pattern))


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """The schema and all schemas in it that are objects."""
    todo = [schema]
    while todo:
        node = todo.pop()
        if isinstance(node, list):
            todo += node
        elif isinstance(node, dict):
            yield node
            for name, value in node.items():
                if name in _MAPS and isinstance(value, dict):
                    todo += value.values()
                elif name not in _DATA:
                    todo.append(value)
