"""Where commands print: results on stdout, remarks and progress on stderr."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

# Without a terminal, running work prints a line this often.
SECONDS_PER_LINE = 10.0

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


class LineProgress(Progress):
    """Progress without a terminal: a line per `SECONDS_PER_LINE` instead of a bar."""

    def __init__(self, *columns: Any, **options: Any) -> None:
        super().__init__(*columns, **options)
        self._printed_at = time.monotonic()

    def update(self, *arguments: Any, **fields: Any) -> None:
        """As in Progress; prints a line if the last one is old enough."""
        super().update(*arguments, **fields)
        now = time.monotonic()
        if now - self._printed_at >= SECONDS_PER_LINE:
            self._printed_at = now
            for task in self.tasks:
                total = "" if task.total is None else f" of {task.total:g}"
                left = "" if task.time_remaining is None else f", {task.time_remaining:.0f} s left"
                note(f"{task.description}: {task.completed:g}{total}{left}")


def progress() -> Progress:
    """A progress display on stderr: `with progress() as bar: task = bar.add_task("weights", total=n)`."""
    kind = Progress if notes.is_terminal else LineProgress
    return kind(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=notes,
        transient=True,
    )


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Show that work of unknown length goes on, and for how long. Yields a `note` that also names the stage."""
    stage = what
    started = time.monotonic()

    def enter(text: str) -> None:
        nonlocal stage
        if text != stage:
            note(text)
        stage = text
        bar.update(task, description=text)

    def print_lines() -> None:
        while not done.wait(SECONDS_PER_LINE):
            note(f"{stage} ({time.monotonic() - started:.0f} s)")

    done = threading.Event()
    lines = threading.Thread(target=print_lines, name="progress lines", daemon=True)
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=notes, transient=True
    ) as bar:
        task = bar.add_task(what, total=None)
        if not notes.is_terminal:
            lines.start()
        try:
            yield enter
        finally:
            done.set()
            if lines.is_alive():
                lines.join()


@contextmanager
def steps(what: str, total: int | None) -> Iterator[Callable[[str], None]]:
    """Progress in steps of one task: call what is yielded after each of them, with what it was."""
    with progress() as bar:
        task = bar.add_task(what, total=total)

        def step(text: str) -> None:
            bar.update(task, advance=1, description=text)

        yield step
