"""Converts the tools of an OpenAI request to a guide: calls then have the format of Dynamo's parser, and valid
arguments.

    tool_choice   output                                                        guide
    required      [{"name": ..., "parameters": {...}}, ...]                     JSON schema
    a function    its arguments, {...}                                          JSON schema
    auto          text, or <tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>   structural tag

Dynamo's front end expects the first two formats with every parser. The third is the format of the parser `hermes`. With
other parsers, `auto` has no guide.

As in OpenAI's API, what the grammar does not support in a schema is ignored unless the function has `strict`: true.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pipeline.gateway.refusal import FieldError

HERMES = "hermes"
_BEGIN, _END = "<tool_call>", "\n</tool_call>"
# Schema of the arguments of a function without parameters.
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
# The functions of a request by name.
Functions = Mapping[str, Mapping[str, Any]]


def tool_guide(functions: Functions, choice: Any, parallel: bool, parser: str | None) -> tuple[str, str] | None:
    """Type and text of the guide; None for unconstrained output. functions: by name, as in the request. choice: "auto",
    "required" or {"name": ...}. parallel: whether several calls are allowed. parser: Dynamo's name of the parser of the
    model's calls. Raises FieldError if the choice names an unknown function."""
    if choice == "required":
        return "json_schema", json.dumps(_calls(functions, parallel))
    if choice == "auto":
        return ("structural_tag", json.dumps(_hermes_calls(functions))) if parser == HERMES else None
    name = choice["name"]
    if name not in functions:
        raise FieldError("tool_choice", f"names {name!r}, and tools hold {', '.join(functions)}")
    return "json_schema", json.dumps(_with_rules(functions[name]))


def _calls(functions: Functions, parallel: bool) -> dict[str, Any]:
    """JSON schema of a list of calls. parallel: whether several calls are allowed. The parameters of each function have
    an `$id`, so that their references point into them."""
    call = {
        "anyOf": [
            {
                "type": "object",
                "properties": {
                    "name": {"const": name},
                    "parameters": {**_schema(function), "$id": f"function:{number}"},
                },
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
            for number, (name, function) in enumerate(functions.items())
        ]
    }
    # One strict function makes all strict, because llguidance reads the rules of the whole schema only.
    rules = schema_rules(any(function.get("strict") for function in functions.values()))
    return {"type": "array", "items": call, "minItems": 1, **rules} | ({} if parallel else {"maxItems": 1})


def _hermes_calls(functions: Functions) -> dict[str, Any]:
    structures = [
        {
            "begin": f'{_BEGIN}\n{{"name": {json.dumps(name)}, "arguments": ',
            "schema": _with_rules(function),
            "end": f"}}{_END}",
        }
        for name, function in functions.items()
    ]
    return {"type": "structural_tag", "structures": structures, "triggers": [_BEGIN]}


def _with_rules(function: Mapping[str, Any]) -> dict[str, Any]:
    return {**schema_rules(bool(function.get("strict"))), **_schema(function)}


def _schema(function: Mapping[str, Any]) -> Mapping[str, Any]:
    schema: Mapping[str, Any] = function.get("parameters") or _NO_PARAMETERS
    return schema


def schema_rules(is_strict: bool) -> dict[str, Any]:
    """Members of a schema that tell llguidance whether to refuse what it does not support."""
    return {} if is_strict else {"x-guidance": {"lenient": True}}
