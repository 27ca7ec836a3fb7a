"""Tables fit the terminal without breaking words."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from pipeline.cli.tables import fitted

COLUMNS = ("task", "strategy", "tokens/s", "95% interval")
ROWS = (("overall", "none", "10.54", "1.00 to 1.00"), ("overall", "hybrid", "19.99", "1.48 to 2.19"))
PATH = "/engines/a-model-with-a-name/latency/files"


def printed(width: int, columns: Sequence[str] = COLUMNS, rows: Sequence[Sequence[str]] = ROWS) -> list[str]:
    stream = io.StringIO()
    console = Console(file=stream, width=width)
    for table in fitted(columns, rows, width):
        console.print(table)
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    assert all(len(line) <= width for line in lines)
    return lines


def test_a_table_with_room_has_lines() -> None:
    assert "│ overall │ hybrid   │ 19.99    │ 1.48 to 2.19 │" in printed(80)


def test_texts_are_wrapped_between_words() -> None:
    assert "│ overall │ hybrid   │ 19.99    │ 1.48 to  │" in printed(44)


def test_lines_are_left_out_before_words_are_broken() -> None:
    assert "overall  hybrid    19.99     1.48 to" in printed(40)


def test_a_wide_table_has_a_line_per_column_and_as_many_rows_beside_each_other_as_fit() -> None:
    assert printed(34, (*COLUMNS, "identical"), [(*row, "4/4") for row in (*ROWS, ROWS[0])]) == [
        "task          overall",
        "strategy      none",
        "tokens/s      10.54",
        "95% interval  1.00 to 1.00",
        "identical     4/4",
        "",
        "task          overall",
        "strategy      hybrid",
        "tokens/s      19.99",
        "95% interval  1.48 to 2.19",
        "identical     4/4",
        "",
        "task          overall",
        "strategy      none",
        "tokens/s      10.54",
        "95% interval  1.00 to 1.00",
        "identical     4/4",
    ]
    assert (
        printed(42, (*COLUMNS, "identical"), [(*row, "4/4") for row in ROWS])[1] == "strategy      none          hybrid"
    )


@pytest.mark.parametrize("width", [20, 30, 40, 160])
def test_no_character_of_a_long_path_is_lost(width: int) -> None:
    text = "".join(printed(width, ("server", ""), [("repository", PATH), ("log", PATH)]))
    assert "".join(text.replace("│", " ").replace("repository ", " ").split()).count(PATH) == 2


def test_no_rows_and_no_columns() -> None:
    assert "task" in "".join(printed(80, rows=()))
    assert printed(80, (), ()) == [""]
