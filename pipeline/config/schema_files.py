"""JSON schemas of the YAML files, generated from the pydantic types, with which editors complete and check them."""

from __future__ import annotations

import json
from typing import Any

from pipeline.config.schema import Frozen, ModelConfig, ProfileConfig, ResolvedConfig

_SCHEMAS: dict[str, type[Frozen]] = {
    "model.schema.json": ModelConfig,
    "profile.schema.json": ProfileConfig,
    "resolved.schema.json": ResolvedConfig,
}


def schema_texts() -> dict[str, str]:
    """Content of each schema file by its name."""
    return {name: json.dumps(_schema_of(kind), indent=2, ensure_ascii=False) + "\n" for name, kind in _SCHEMAS.items()}


def _schema_of(kind: type[Frozen]) -> dict[str, Any]:
    schema = kind.model_json_schema()
    if kind is ResolvedConfig:
        return schema
    # In a file the name comes from the file name; a model may take other settings from its base.
    schema["required"] = [] if kind is ModelConfig else [key for key in schema.get("required", []) if key != "name"]
    if kind is ModelConfig:
        schema["properties"]["base"] = {"type": "string", "description": "File with the settings of the family."}
    return schema
