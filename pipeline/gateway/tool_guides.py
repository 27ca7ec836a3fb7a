"""Converts the tools of an OpenAI request to a guide: calls then have the format of Dynamo's parser, and valid
arguments.

    tool_choice   output                                                        guide
    required      [{"name": ..., "parameters": {...}}, ...]                     JSON schema
    a function    its arguments, {...}                                          JSON schema
    auto          text, or <tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>   structural tag

Dynamo's front end expects the first two formats with every parser. The third is the format of the parser `hermes`. With
other parsers, `auto` has no guide.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pipeline.errors import RequestError

HERMES = "hermes"
_BEGIN, _END = "<tool_call>", "\n</tool_call>"
# Schema of the arguments of a function without parameters.
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


def tool_guide(functions: Mapping[str, Any], choice: Any, parallel: bool, parser: str | None) -> tuple[str, str] | None:
    """Type and text of the guide; None for unconstrained output. functions: schema of the parameters by name. choice:
    "auto", "required" or {"name": ...}. parallel: whether several calls are allowed. parser: Dynamo's name of the
    parser of the model's calls. Raises RequestError if the choice names an unknown function."""
    if choice == "required":
        return "json_schema", json.dumps(_calls(functions, parallel))
    if choice == "auto":
        return ("structural_tag", json.dumps(_hermes_calls(functions))) if parser == HERMES else None
    name = choice["name"]
    if name not in functions:
        raise RequestError(f"tool_choice names {name!r}, and tools hold {', '.join(functions)}")
    return "json_schema", json.dumps(_parameters(functions[name]))


def _calls(functions: Mapping[str, Any], parallel: bool) -> dict[str, Any]:
    """JSON schema of a list of calls. parallel: whether several calls are allowed."""
    call = {
        "anyOf": [
            {
                "type": "object",
                "properties": {"name": {"const": name}, "parameters": _parameters(parameters)},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
            for name, parameters in functions.items()
        ]
    }
    return {"type": "array", "items": call, "minItems": 1} | ({} if parallel else {"maxItems": 1})


def _hermes_calls(functions: Mapping[str, Any]) -> dict[str, Any]:
    structures = [
        {
            "begin": f'{_BEGIN}\n{{"name": {json.dumps(name)}, "arguments": ',
            "schema": _parameters(parameters),
            "end": f"}}{_END}",
        }
        for name, parameters in functions.items()
    ]
    return {"type": "structural_tag", "structures": structures, "triggers": [_BEGIN]}


def _parameters(schema: Any) -> Any:
    return schema or _NO_PARAMETERS
