"""Files of the repository that are generated from the code: JSON schemas, the page of architectures, version tables."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.checkpoint.architectures import ARCHITECTURES, MOVING_ROPE, REFUSED
from pipeline.config.registry import backend_names
from pipeline.config.schema import Frozen, ModelConfig, ProfileConfig, ResolvedConfig
from pipeline.engine.backend import VersionTable, backend_of
from pipeline.errors import ConfigError
from pipeline.markdown import markdown_table

# The version tables of a backend are between these lines of docs/how-to/<backend>.md.
BEGIN = "<!-- versions: written by `lookahead dev generate` -->"
END = "<!-- end of versions -->"

_SCHEMAS: dict[str, type[Frozen]] = {
    "model.schema.json": ModelConfig,
    "profile.schema.json": ProfileConfig,
    "resolved.schema.json": ResolvedConfig,
}


def generated_files(home: Path) -> dict[Path, str]:
    """Path and current content of each file below home. Raises ConfigError if a page has no marks for its tables."""
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
    """Text of a page with these tables between its marks. Raises ConfigError if the page has no marks."""
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
    # A file needs no name, which is the file name; it can inherit other settings from its base.
    schema["required"] = [] if kind is ModelConfig else [key for key in schema.get("required", []) if key != "name"]
    schema["properties"]["base"] = {
        "type": "string",
        "description": "File with the settings that this one leaves out, beside it or among the shipped ones.",
    }
    return schema


_HEAD = """# Architectures of the torch engine

Written by `lookahead dev generate` from `pipeline/checkpoint/architectures.py`; `make check` and a test fail when it is
stale.

For each row `tests/unit/engine/torch/test_architectures.py` makes a tiny random model. It compares chunked prompts,
draft trees and the KV cache after a commit with transformers' own plain passes, path by path. Windows are shorter than
the test's sequences. The column attention is the attention of the modelling code. int8 is `engine.quantization: int8`.

The column pass is the implementation of the forward pass. `lean` is the engine's own pass for CPUs in float32, bfloat16
and int8 (see [cpu-engine.md](cpu-engine.md)). These families use the pass of transformers on CUDA, in float16, in
with `model.parallelism.tensor` above 1, and for a checkpoint with partial rotary embeddings
or an activation other than SiLU. `transformers` is the modelling code of transformers, whose int8 rounds only weights.

| class in config.json | family | attention | pass | int8 |
| --- | --- | --- | --- | --- |
"""

_REFUSED = """
## Refused, and why

A class in neither table is refused as not tested.

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
        f"| any with rotary embeddings of type {kinds} | the length of a sequence changes them at all positions, so "
        "a draft token past the limit would change earlier tokens |"
    )
    reasons: dict[str, list[str]] = {}
    for known in ARCHITECTURES:
        if known.unquantized is not None:
            reasons.setdefault(known.unquantized, []).append(known.name)
    plain = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
    return "\n".join([_HEAD.strip(), *rows, "", f"No int8: {plain}.", _REFUSED.rstrip(), *refused, ""])
