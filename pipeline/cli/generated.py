"""Files of the repository that are written from the code: JSON schemas, the page of architectures, version tables."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.checkpoint.architectures import ARCHITECTURES, MOVING_ROPE, REFUSED
from pipeline.config.registry import backend_names
from pipeline.config.schema import Frozen, ModelConfig, ProfileConfig, ResolvedConfig
from pipeline.engine.backend import backend_of
from pipeline.engine.finding import VersionTable
from pipeline.errors import ConfigError
from pipeline.markdown import markdown_table

# The version tables of a backend stand between these lines of docs/how-to/<backend>.md.
BEGIN = "<!-- versions: written by `lookahead dev generate` -->"
END = "<!-- end of versions -->"

_SCHEMAS: dict[str, type[Frozen]] = {
    "model.schema.json": ModelConfig,
    "profile.schema.json": ProfileConfig,
    "resolved.schema.json": ResolvedConfig,
}


def generated_files(home: Path) -> dict[Path, str]:
    """Path and up-to-date content of each file below home. Raises ConfigError for a page without marks for its
    tables."""
    docs = home / "docs"
    files = {home / "configs" / "schema" / name: text for name, text in schema_texts().items()}
    files[docs / "architectures.md"] = architecture_page()
    for name in backend_names():
        if tables := backend_of(name).version_tables():
            page = docs / "how-to" / f"{name.replace('_', '-')}.md"
            files[page] = page_with(page, tables)
    return files


def stale_files(files: dict[Path, str]) -> list[Path]:
    """Files that are missing or differ from their content in `files`."""
    return [path for path, text in files.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]


def page_with(page: Path, tables: Iterable[VersionTable]) -> str:
    """The text of a page with these tables between its marks. Raises ConfigError for a page without the marks."""
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    begin, end = text.find(BEGIN), text.find(END)
    if begin < 0 or end < begin:
        raise ConfigError(f"{page} lacks the marks {BEGIN} and {END} that hold the version tables. Put them back.")
    parts = [f"{table.title}:\n\n{markdown_table(table.columns, table.rows)}" for table in tables]
    return text[:begin] + "\n\n".join([BEGIN, *parts, END]) + text[end + len(END) :]


def schema_texts() -> dict[str, str]:
    """Content of each JSON schema of the YAML files, with which editors complete and check them, by its name."""
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


_HEAD = """# Architectures of the torch engine

Written by `lookahead dev generate` from `pipeline/checkpoint/architectures.py`; `make check` and a test fail when it is
stale.

For each row `tests/unit/engine/torch/test_architectures.py` makes a tiny random model and compares prompts in chunks,
draft trees and the cache after a commit with transformers' own plain passes, path by path; windows are shorter than the
test's sequences. Attention is that of the modelling code: full, or as the row says. int8: `engine.quantization: int8`.

pass: what computes the model. `lean` is the engine's own pass for CPUs in float32 and int8 (see
[cpu-engine.md](cpu-engine.md)); these families take the transformers path on CUDA, in 16 bit, with
`model.parallelism.tensor` above 1, and for a checkpoint with another activation than SiLU or with partial rotary
embeddings. `transformers` is transformers' modelling code; its int8 rounds the weights only.

| class in config.json | family | attention | pass | int8 |
| --- | --- | --- | --- | --- |
"""

_REFUSED = """
## Refused, and why

A class that is in neither table is refused as not tested.

| class in config.json | reason |
| --- | --- |
"""


def architecture_page() -> str:
    rows = [
        f"| {known.name} | {known.family} | {known.attention} | {'lean' if known.lean else 'transformers'} | "
        f"{'yes' if known.unquantized is None else 'no'} |"
        for known in ARCHITECTURES
    ]
    refused = [f"| {name} | {reason} |" for name, reason in REFUSED.items()]
    kinds = " or ".join(f"`{kind}`" for kind in MOVING_ROPE)
    refused.append(
        f"| any with rotary embeddings of type {kinds} | they change for all positions with the longest one, so a "
        "draft token past the limit would change tokens before it |"
    )
    reasons: dict[str, list[str]] = {}
    for known in ARCHITECTURES:
        if known.unquantized is not None:
            reasons.setdefault(known.unquantized, []).append(known.name)
    plain = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
    return "\n".join([_HEAD.strip(), *rows, "", f"No int8: {plain}.", _REFUSED.rstrip(), *refused, ""])
