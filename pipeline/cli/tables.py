"""Lays out a table for the width of a terminal, so that no word is broken and no value is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

# Longer words, such as paths, may be broken.
_LONGEST_WORD = 18


class _Style(NamedTuple):
    """lines: whether there are lines between the columns. edges: width of the lines at both ends."""

    lines: bool
    gap: int
    edges: int


_LINES, _NO_LINES = _Style(True, 3, 4), _Style(False, 2, 0)


def fitted(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[Table]:
    """Yield the table, with lines if there is room for them. If words would be broken, yield tables with a line per
    column instead, each with as many rows as fit beside each other."""
    for style in (_LINES, _NO_LINES):
        widths = _widths([columns, *rows], width - style.edges - style.gap * (len(columns) - 1))
        if widths is not None:
            yield _table(columns, rows, widths, style)
            return
    headings = max(map(cell_len, columns))
    needed = [max(map(cell_len, row)) for row in rows]
    start = 0
    while start < len(rows):
        room, end = width - headings, start
        while end < len(rows) and (end == start or needed[end] + _NO_LINES.gap <= room):
            room -= needed[end] + _NO_LINES.gap
            end += 1
        lines = list(zip(columns, *rows[start:end], strict=True))
        widths = [headings, *needed[start : end - 1], max(1, needed[end - 1] + min(room, 0))]
        if start:
            yield Table(box=None)  # an empty line
        yield _table(lines[0], lines[1:], widths, _NO_LINES)
        start = end


def _widths(lines: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """Widths of the columns that fill at most this room and break no word; None if there are none."""
    columns = list(zip(*lines, strict=True))
    widths = [max(_longest_word(cell) for cell in column) for column in columns]
    wanted = [max(map(cell_len, column)) for column in columns]
    if sum(widths) > room:
        return None
    while sum(widths) < min(room, sum(wanted)):
        _, narrowest = min((width, index) for index, width in enumerate(widths) if width < wanted[index])
        widths[narrowest] += 1
    return widths


def _longest_word(cell: str) -> int:
    return max((min(cell_len(word), _LONGEST_WORD) for word in cell.split()), default=0)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int], style: _Style) -> Table:
    table = Table(header_style="bold")
    if not style.lines:
        table.box, table.padding, table.pad_edge = None, (0, style.gap, 0, 0), False
    for heading, width in zip(columns, widths, strict=True):
        table.add_column(Text(heading), overflow="fold", width=width)
    for row in rows:
        table.add_row(*map(Text, row))
    return table
