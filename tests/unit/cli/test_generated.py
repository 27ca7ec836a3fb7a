"""Generated files are up to date; stale ones are reported and written again."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pipeline.cli.generated import BEGIN, END, generated_files, page_with, schema_texts, stale_files
from pipeline.config.folders import folders
from tests.command_line import exit_code


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


def test_a_page_that_cannot_be_written_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was emptied first, and without the lines around its tables it could not be generated again."""
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}\n\nstale words\n\n{END}\n")
    before = page.read_bytes()
    monkeypatch.setattr("pipeline.cli.generated.generated_files", lambda home: {page: page_with(page, "| a |")})

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        assert exit_code("dev", "generate") == 2
    assert "No space left on device" in capsys.readouterr().err
    assert page.read_bytes() == before
    assert exit_code("dev", "generate") == 0
    assert "| a |" in page.read_text(encoding="utf-8")
