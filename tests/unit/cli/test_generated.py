"""Generated files are up to date; stale ones are reported and written again."""

from __future__ import annotations

from pathlib import Path

from pipeline.cli.generated import BEGIN, END, generated_files, page_with, schema_texts, stale_files
from pipeline.config.folders import folders


def test_the_generated_files_are_fresh() -> None:
    files = generated_files(folders({}).home)
    assert {"model.schema.json", "architectures.md", "tensorrt-llm.md"} <= {path.name for path in files}
    assert stale_files(files) == [], "run `lookahead dev generate`"


def test_a_changed_or_missing_file_is_noticed(tmp_path: Path) -> None:
    files = {tmp_path / name: text for name, text in schema_texts().items()}
    first, *others = files
    first.write_text(files[first], encoding="utf-8")
    assert stale_files(files) == others
    first.write_text(files[first].replace("architecture", "architektur"), encoding="utf-8")
    assert stale_files(files) == [first, *others]


def test_stale_tables_are_replaced_and_the_rest_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\n\nstale words\n\n{END}\nafter\n")
    text = page_with(page, "| driver | 580 |")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "| driver | 580 |" in text
    assert "stale words" not in text
