"""Where commands print: results on stdout, remarks and progress on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

# Away from a terminal, tables are as wide as they need rather than 80 columns. There is no stdout if it was closed.
console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout and sys.stdout.isatty() else 160)
notes = Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """A line of the result."""
    console.print(text, markup=False)


def note(text: str) -> None:
    """A remark that is not part of the result."""
    notes.print(text, markup=False, style="dim")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """A table on stdout; cells are shown with str()."""
    grid = Table(*columns, title=title, title_justify="left", header_style="bold")
    for row in rows:
        grid.add_row(*(str(cell) for cell in row))
    console.print(grid, soft_wrap=False)


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def progress() -> Progress:
    """A progress display on stderr: `with progress() as bar: task = bar.add_task("weights", total=n)`."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=notes,
        transient=True,
    )


@contextmanager
def steps(what: str, total: int | None) -> Iterator[Callable[[str], None]]:
    """Progress in steps of one task: call what is yielded after each of them, with what it was."""
    with progress() as bar:
        task = bar.add_task(what, total=total)

        def step(text: str) -> None:
            bar.update(task, advance=1, description=text)

        yield step
