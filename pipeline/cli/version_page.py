"""The version tables inside docs/how-to/tensorrt-llm.md, written from data between two marks."""

from __future__ import annotations

from pathlib import Path

from pipeline.engine.tensorrt_llm.versions import markdown
from pipeline.errors import ConfigError

BEGIN = "<!-- versions: written by `lookahead dev versions --write` -->"
END = "<!-- end of versions -->"


def version_page(home: Path) -> Path:
    """The page that holds the tables."""
    return home / "docs" / "how-to" / "tensorrt-llm.md"


def is_fresh(page: Path) -> bool:
    """Whether the tables of a page are those of the data."""
    return _parts(page)[1] == _tables()


def write_page(page: Path) -> None:
    """Write the tables into a page; everything else stays."""
    before, _, after = _parts(page)
    page.write_text(before + _tables() + after, encoding="utf-8")


def _tables() -> str:
    return f"{BEGIN}\n\n{markdown()}\n\n{END}"


def _parts(page: Path) -> tuple[str, str, str]:
    """What stands before the tables, they with their marks, and what stands behind."""
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    begin, end = text.find(BEGIN), text.find(END)
    if begin < 0 or end < begin:
        raise ConfigError(f"{page} lacks the marks {BEGIN} and {END} that hold the version tables. Put them back.")
    return text[:begin], text[begin : end + len(END)], text[end + len(END) :]
