"""JSON schemas of the YAML files, generated from the pydantic types, with which editors complete and check them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.config.schema import Frozen, ModelConfig, ProfileConfig, ResolvedConfig

_SCHEMAS: dict[str, type[Frozen]] = {
    "model.schema.json": ModelConfig,
    "profile.schema.json": ProfileConfig,
    "resolved.schema.json": ResolvedConfig,
}


def write_schemas(folder: Path) -> list[Path]:
    """Write all schemas and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in _SCHEMAS:
        (folder / name).write_text(_text(name), encoding="utf-8")
    return [folder / name for name in _SCHEMAS]


def stale_schemas(folder: Path) -> list[str]:
    """Names of the schemas that are missing or out of date."""
    return [
        name
        for name in _SCHEMAS
        if not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != _text(name)
    ]


def _text(name: str) -> str:
    return json.dumps(_schema_of(_SCHEMAS[name]), indent=2, ensure_ascii=False) + "\n"


def _schema_of(kind: type[Frozen]) -> dict[str, Any]:
    schema = kind.model_json_schema()
    if kind is ResolvedConfig:
        return schema
    # In a file the name comes from the file name; a model may take other settings from its base.
    schema["required"] = [] if kind is ModelConfig else [key for key in schema.get("required", []) if key != "name"]
    if kind is ModelConfig:
        schema["properties"]["base"] = {"type": "string", "description": "File with the settings of the family."}
    return schema
