"""Translates a guide to a grammar of llguidance."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from llguidance import LLMatcher, StructTag
from llguidance.gbnf_to_lark import any_to_lark

from pipeline.decoding.grammar.finiteness import require_finite
from pipeline.decoding.grammar.guide import Guide
from pipeline.decoding.grammar.json_schema import drop_unsupported_patterns, require_few_optional
from pipeline.errors import RequestError

# JSON has one space after commas and colons and no other white space, so that keys and punctuation are forced. A schema
# may set other rules under "x-guidance".
JSON_FORMAT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

_TAG_PARTS = ("begin", "schema", "end")


def grammar_text(guide: Guide, special_tokens: Collection[str]) -> str:
    """Return the guide as a grammar of llguidance. special_tokens: tokens of the vocabulary that are not text. Raises
    RequestError if the guide's own syntax is wrong; llguidance checks the rest."""
    if guide.kind == "json":
        return LLMatcher.grammar_from_json_schema({"type": "object"}, defaults=JSON_FORMAT)
    if guide.kind == "json_schema":
        schema = _parsed(guide, (dict, bool))
        is_unchanged = isinstance(schema, dict) and not _prepare(schema)
        # Only a JSON object takes the defaults, so `true` and `false` are wrapped.
        text = guide.text if is_unchanged else json.dumps(schema if isinstance(schema, dict) else {"allOf": [schema]})
        try:
            return LLMatcher.grammar_from_json_schema(text, defaults=JSON_FORMAT)
        except ValueError as error:  # Python reads NaN and numbers of any size
            raise RequestError(f"the guide of type json_schema is not valid JSON: {error}") from error
    if guide.kind == "regex":
        return LLMatcher.grammar_from_regex(guide.text)
    if guide.kind == "choice":
        return _choice(_parsed(guide, (list,)))
    if guide.kind == "structural_tag":
        return _structural_tag(_parsed(guide, (dict,)), special_tokens)
    try:
        return LLMatcher.grammar_from_lark(any_to_lark(guide.text))
    except Exception as error:  # the converter raises bare exceptions
        raise RequestError(f"the guide of type ebnf_grammar is neither GBNF nor Lark: {error}") from error


def _prepare(schema: dict[str, Any]) -> bool:
    """Check a schema and remove what may be ignored, in place. Returns whether it has changed. Raises RequestError if
    it cannot be used."""
    require_finite(schema)
    require_few_optional(schema)
    return drop_unsupported_patterns(schema)


def _parsed(guide: Guide, types: tuple[type, ...]) -> Any:
    try:
        value = json.loads(guide.text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the guide of type {guide.kind} is not valid JSON: {error}") from error
    if not isinstance(value, types):
        raise RequestError(
            f"the guide of type {guide.kind} is a JSON {type(value).__name__}; it must be a {types[0].__name__}"
        )
    return value


def _choice(choices: list[Any]) -> str:
    if not choices or not all(isinstance(choice, str) and choice for choice in choices):
        raise RequestError("the guide of type choice must be a JSON list of strings that are not empty")
    return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(choice) for choice in choices))


def _structural_tag(tag: dict[str, Any], special_tokens: Collection[str]) -> str:
    """Free text in which each trigger begins a tag: {"structures": [{"begin", "schema", "end"}], "triggers": [...]}."""
    structures, triggers = tag.get("structures"), tag.get("triggers")
    if not isinstance(structures, list) or not structures or not isinstance(triggers, list):
        raise RequestError(
            'the guide of type structural_tag must be {"type": "structural_tag", "structures": [{"begin", "schema", '
            '"end"}, ...], "triggers": [...]}'
        )
    tags = [_tag(structure, triggers) for structure in structures]
    are_special = {tag.trigger in special_tokens for tag in tags}
    if len(are_special) > 1:
        raise RequestError(
            "the triggers of the structural tag are in part special tokens of the model and in part text; use one kind"
        )
    return StructTag.to_grammar(tags, assume_special=are_special.pop())


def _tag(structure: Any, triggers: list[Any]) -> StructTag:
    begin, schema, end = (structure.get(name) if isinstance(structure, dict) else None for name in _TAG_PARTS)
    if not isinstance(begin, str) or not isinstance(schema, dict) or not isinstance(end, str):
        raise RequestError('each structure of a structural tag must be {"begin": text, "schema": {...}, "end": text}')
    trigger = next((t for t in triggers if isinstance(t, str) and t and begin.startswith(t)), None)
    if trigger is None:
        raise RequestError(f"{begin!r} begins with no trigger of the structural tag; add one to triggers")
    _prepare(schema)
    rules = schema.get("x-guidance", {})
    merged = JSON_FORMAT | rules if isinstance(rules, dict) else rules  # llguidance refuses other types
    return StructTag(trigger=trigger, begin=begin, grammar={**schema, "x-guidance": merged}, end=end)
