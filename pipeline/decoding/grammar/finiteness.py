"""Refuses JSON schemas without an instance of finite size, because their output would never end."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from pipeline.errors import RequestError


def require_finite(schema: Any) -> None:
    """Raise RequestError if every instance of the schema contains a further instance of it. Ignores references to other
    documents, which the compiler refuses."""
    needed = _reachable(schema)
    # Least fixed point: a schema is finite if each of its requirements has a finite alternative. A schema is examined
    # again when one of these alternatives turns out to be finite.
    needed_by: dict[int, list[int]] = {}
    for key, needs in needed.items():
        for part in {part for parts in needs for part in parts}:
            needed_by.setdefault(part, []).append(key)
    finite: set[int] = set()
    todo = list(needed)
    while todo:
        key = todo.pop()
        if key not in finite and all(any(part in finite for part in parts) for parts in needed[key]):
            finite.add(key)
            todo += needed_by.get(key, [])
    if id(schema) not in finite:
        raise RequestError(
            "the JSON schema requires itself recursively, so no finite output matches it; make the recursive property "
            "optional or nullable"
        )


def _reachable(schema: Any) -> dict[int, list[list[int]]]:
    """All schemas that an instance must or may match, as a whole or in a required part, by identity. Value: the
    requirements of each, as in `_alternatives`."""
    needed: dict[int, list[list[int]]] = {}
    # Each schema and the one that its references begin at. All are kept, because an identity is reused after the end of
    # its object.
    nodes = [(schema, schema)]
    for node, root in nodes:  # the list grows during the loop
        if id(node) not in needed:
            base = node if isinstance(node, dict) and isinstance(node.get("$id"), str) else root
            alternatives = _alternatives(node, base)
            needed[id(node)] = [[id(part) for part in parts] for parts in alternatives]
            nodes += [(part, base) for parts in alternatives for part in parts]
    return needed


def _alternatives(node: Any, root: Any) -> list[list[Any]]:
    """The requirements of a schema. Each is a list of alternatives, of which at least one must be finite."""
    if not isinstance(node, dict):
        return []
    # A constant is finite.
    if "const" in node or "enum" in node:
        return []
    needed: list[list[Any]] = []
    if isinstance(reference := node.get("$ref"), str):
        target = _resolved(reference, root)
        needed += [] if target is None else [[target]]
    needed += [[part] for part in _list(node.get("allOf"))]
    needed += [parts for name in ("anyOf", "oneOf") if (parts := _list(node.get(name)))]
    kinds = node.get("type")
    if isinstance(kinds, list) and kinds and all(kind in ("object", "array") for kind in kinds):
        needed.append([{**node, "$id": None, "type": kind} for kind in ("object", "array") if kind in kinds])
    if kinds == "object":
        needed += _of_object(node)
    if kinds == "array":
        needed += _of_array(node)
    return needed


def _of_object(node: dict[str, Any]) -> list[list[Any]]:
    """The requirements of the properties that an object must have."""
    properties = _dict(node.get("properties"))
    # Alternatives for a required name that is not in `properties`. Patterns are not matched, so each may apply.
    others = [*_dict(node.get("patternProperties")).values(), node.get("additionalProperties")]
    required = {name for name in _list(node.get("required")) if isinstance(name, str)}
    needed = [[properties[name]] for name in required & properties.keys()]
    needed += [others] if required - properties.keys() else []
    return [*needed, [*properties.values(), *others]] if _least(node, "minProperties") else needed


def _of_array(node: dict[str, Any]) -> list[list[Any]]:
    """The requirements of the items that an array must have."""
    first, others = node.get("prefixItems"), node.get("items")
    if isinstance(others, list):  # drafts before 2020-12
        first, others = others, node.get("additionalItems")
    least = _least(node, "minItems")
    needed = [[part] for part in _list(first)[:least]]
    return [*needed, [others]] if len(needed) < least else needed


def _least(node: dict[str, Any], key: str) -> int:
    """A minimum of a schema, 0 if there is none."""
    return value if isinstance(value := node.get(key), int) and value > 0 else 0


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _resolved(reference: str, root: Any) -> Any | None:
    """The schema of a reference to a place within the document, None if there is none."""
    if not f"{reference}/".startswith("#/"):
        return None
    node = root
    for part in _parts(reference):
        if isinstance(node, dict) and part in node:
            node = node[part]
        elif isinstance(node, list) and part.isdecimal() and int(part) < len(node):
            node = node[int(part)]
        else:
            return None
    return node


def _parts(reference: str) -> list[str]:
    return [unquote(part).replace("~1", "/").replace("~0", "~") for part in reference.split("/")[1:]]
