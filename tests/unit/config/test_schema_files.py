"""The JSON schemas in the repository are those of the types, and accept the shipped YAML files."""

from __future__ import annotations

from pathlib import Path

from pipeline.config.places import places
from pipeline.config.schema_files import stale_schemas, write_schemas


def test_the_shipped_schemas_are_fresh() -> None:
    assert stale_schemas(places({}).home / "configs" / "schema") == [], "run `lookahead dev schema`"


def test_a_changed_or_missing_schema_is_noticed(tmp_path: Path) -> None:
    assert len(stale_schemas(tmp_path)) == 3
    first, *_ = write_schemas(tmp_path)
    assert stale_schemas(tmp_path) == []
    first.write_text(first.read_text(encoding="utf-8").replace("architecture", "architektur"), encoding="utf-8")
    assert stale_schemas(tmp_path) == [first.name]
