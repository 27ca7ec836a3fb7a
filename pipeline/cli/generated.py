"""Files of the repository that are generated from the code: JSON schemas, the page of architectures, version tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.checkpoint.architectures import ARCHITECTURES, LENGTH_DEPENDENT_ROPE, REFUSED, UNQUANTIZED
from pipeline.config.registry import backend_names
from pipeline.config.schema import Frozen, ModelConfig, ProfileConfig, ResolvedConfig
from pipeline.engine.backend import backend_of
from pipeline.markdown import markdown_table

# Tables are between these lines of their page.
BEGIN = "<!-- written by `lookahead dev generate` -->"
END = "<!-- end -->"

_SCHEMAS: dict[str, type[Frozen]] = {
    "model.schema.json": ModelConfig,
    "profile.schema.json": ProfileConfig,
    "resolved.schema.json": ResolvedConfig,
}


def generated_files(home: Path) -> dict[Path, str]:
    """Path and current content of each file below home."""
    docs = home / "docs"
    files = {home / "configs" / "schema" / name: text for name, text in schema_texts().items()}
    pages = {docs / "architectures.md": architecture_tables()}
    for name in backend_names():
        if tables := backend_of(name).version_tables():
            texts = (f"{table.title}:\n\n{markdown_table(table.columns, table.rows)}" for table in tables)
            pages[docs / "how-to" / f"{name.replace('_', '-')}.md"] = "\n\n".join(texts)
    return files | {page: page_with(page, tables) for page, tables in pages.items()}


def stale_files(files: dict[Path, str]) -> list[Path]:
    """Files that are missing or differ from their content in `files`."""
    return [path for path, text in files.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]


def page_with(page: Path, tables: str) -> str:
    """Text of a page with these tables between its marks. Raises ValueError if the page has no marks."""
    text = page.read_text(encoding="utf-8")
    return f"{text[: text.index(BEGIN)]}{BEGIN}\n\n{tables}\n\n{text[text.index(END) :]}"


def schema_texts() -> dict[str, str]:
    """Content of each JSON schema of the YAML files, with which editors complete and check them, by its name."""
    return {name: json.dumps(_schema_of(kind), indent=2, ensure_ascii=False) + "\n" for name, kind in _SCHEMAS.items()}


def _schema_of(kind: type[Frozen]) -> dict[str, Any]:
    schema = kind.model_json_schema()
    if kind is ResolvedConfig:
        return schema
    # A file needs no name, which is the file name; it can inherit other settings from its base.
    schema["required"] = [] if kind is ModelConfig else [key for key in schema.get("required", []) if key != "name"]
    schema["properties"]["base"] = {
        "type": "string",
        "description": "File with the settings that this one leaves out, beside it or among the shipped ones.",
    }
    return schema


def architecture_tables() -> str:
    """The architectures that the torch engine serves, and those that it refuses."""
    served = [
        (
            known.name,
            known.family,
            known.attention,
            "lean" if known.lean else "transformers",
            "yes" if known.unquantized is None else "no",
        )
        for known in ARCHITECTURES
    ]
    kinds = " or ".join(f"`{kind}`" for kind in LENGTH_DEPENDENT_ROPE)
    moving = (
        "the length of a sequence changes them at all positions, so a draft token past the limit would change earlier "
        "tokens"
    )
    refused = [*REFUSED.items(), (f"any with rotary embeddings of type {kinds}", moving)]
    return "\n\n".join(
        [
            markdown_table(("class in config.json", "family", "attention", "pass", "int8"), served),
            "Without int8, which quantizes linear layers only:",
            markdown_table(("class in config.json", "reason"), UNQUANTIZED.items()),
            "Refused, and why (a class in no table is refused as not tested):",
            markdown_table(("class in config.json", "reason"), refused),
        ]
    )
