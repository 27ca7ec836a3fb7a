"""Converts the response format of an OpenAI request to a guide: TensorRT-LLM's guide type and guide.

What the grammar does not support in a schema is refused. With `strict`: false it is ignored, as in OpenAI's API.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pipeline.errors import RequestError
from pipeline.gateway.annotations import regex_of_choices
from pipeline.gateway.refusal import FieldError
from pipeline.gateway.tool_guides import schema_rules

_TEXTS = {"guided_regex": "regex", "guided_grammar": "ebnf_grammar"}
_STRUCTURED = ("json", "regex", "grammar", "choice")


def response_guide(sent: dict[str, Any]) -> tuple[str, str] | None:
    """Remove the response format from a request, and return its guide type and guide. Raises RequestError if there are
    two or one is invalid. sent: a request that `check_openai_types` accepts."""
    found = [format_guide(sent.pop("response_format", None))]
    for name, kind in _TEXTS.items():
        if (text := sent.pop(name, None)) is not None:
            found.append((kind, text))
    if (schema := sent.pop("guided_json", None)) is not None:
        found.append(("json_schema", schema if isinstance(schema, str) else json.dumps(schema)))
    if (choices := sent.pop("guided_choice", None)) is not None:
        found.append(("regex", regex_of_choices(choices)))
    guides = [guide for guide in found if guide is not None]
    if len(guides) > 1:
        raise RequestError("response_format and guided_* exclude each other; send one of them")
    return guides[0] if guides else None


def guided_fields(outputs: object) -> dict[str, Any]:
    """Convert the field `structured_outputs` to the fields guided_*, vLLM's older form. Raises RequestError unless it
    is an object with known names only, at least one of them."""
    given = (
        {name: value for name, value in outputs.items() if value is not None} if isinstance(outputs, Mapping) else {}
    )
    if not given or not given.keys() <= set(_STRUCTURED):
        raise FieldError("structured_outputs", f"must have one of {', '.join(_STRUCTURED)}, and nothing else")
    return {f"guided_{name}": value for name, value in given.items()}


def format_guide(value: object) -> tuple[str, str] | None:
    """Guide type and guide of a `response_format`; None without one, or for one of any text. Raises FieldError if it is
    invalid."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise FieldError("response_format", 'must be an object such as {"type": "json_object"}')
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        schema = value.get("schema", value.get("value"))  # as llama.cpp takes it, and as Hugging Face's client sends it
        if schema is not None and not isinstance(schema, Mapping):
            raise FieldError("response_format.schema", "must be an object")
        return ("json", "") if schema is None else ("json_schema", json.dumps(schema))
    if kind == "json_schema":
        schema = value.get("json_schema")
        if isinstance(schema, Mapping) and isinstance(schema.get("schema"), Mapping):
            return "json_schema", json.dumps({**schema_rules(schema.get("strict") is not False), **schema["schema"]})
        raise FieldError("response_format.json_schema", 'must be {"name": "...", "schema": {...}}')
    raise FieldError("response_format", f"has type {kind!r}; it must be text, json_object or json_schema")
