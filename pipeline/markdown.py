"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown; cells are converted with str(), floats to three digits."""

    def line(cells: Sequence[object]) -> str:
        texts = (f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells)
        return "| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in texts) + " |"

    return "\n".join([line(columns), line(["---"] * len(columns)), *map(line, rows)])
