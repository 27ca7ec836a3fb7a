"""Writes the version tables of a backend into its page of docs/how-to, between two marks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.engine.backend import backend_of
from pipeline.engine.finding import Table
from pipeline.errors import ConfigError

BEGIN = "<!-- versions: written by `lookahead dev versions --write` -->"
END = "<!-- end of versions -->"


def version_page(home: Path, backend: str) -> Path:
    """Path of the page with a backend's tables."""
    return home / "docs" / "how-to" / f"{backend.replace('_', '-')}.md"


def is_fresh(page: Path, backend: str) -> bool:
    """Whether the tables of a page are up to date. Raises ConfigError for a page without the marks."""
    return _parts(page)[1] == _tables(backend)


def write_page(page: Path, backend: str) -> None:
    """Write the tables into a page and keep everything else. Raises ConfigError for a page without the marks."""
    before, _, after = _parts(page)
    page.write_text(before + _tables(backend) + after, encoding="utf-8")


def _tables(backend: str) -> str:
    parts = [f"{table.title}:\n\n{_markdown(table)}" for table in backend_of(backend).version_tables()]
    return "\n\n".join([BEGIN, *parts, END])


def _markdown(table: Table) -> str:
    lines: list[Sequence[str]] = [table.columns, tuple("---" for _ in table.columns), *table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _parts(page: Path) -> tuple[str, str, str]:
    """The text before the tables, the tables with their marks, and the text after them."""
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    begin, end = text.find(BEGIN), text.find(END)
    if begin < 0 or end < begin:
        raise ConfigError(f"{page} lacks the marks {BEGIN} and {END} that hold the version tables. Put them back.")
    return text[:begin], text[begin : end + len(END)], text[end + len(END) :]
