"""Output of the commands: results on stdout, notes and progress on stderr."""

from __future__ import annotations

import io
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
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

# Interval of progress lines without a terminal.
SECONDS_PER_LINE = 10.0

# Without a terminal, tables are as wide as their content instead of 80 columns. A closed stdout is None.
# No output is markup, and ":car:" in a path stays as it is: texts hold names of the user's and outputs of models.
console = Console(
    highlight=False, soft_wrap=True, emoji=False, width=None if sys.stdout and sys.stdout.isatty() else 160
)
notes = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def say(text: str) -> None:
    console.print(text, markup=False)


def note(text: str) -> None:
    """Print a note, which is not part of the result."""
    notes.print(text, markup=False, style="dim")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """Print a table on stdout; cells are converted with str()."""
    grid = Table(title=title and Text(title), title_justify="left", header_style="bold")
    for column in columns:
        grid.add_column(Text(column))
    for row in rows:
        grid.add_row(*(Text(str(cell)) for cell in row))
    console.print(grid, soft_wrap=False)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


class LineProgress(Progress):
    """Progress without a terminal: a line per `SECONDS_PER_LINE` instead of a bar."""

    def __init__(self, *columns: Any, **options: Any) -> None:
        super().__init__(*columns, **options)
        self._printed_at = time.monotonic()

    def update(self, *arguments: Any, **fields: Any) -> None:
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
    return _display(Progress if notes.is_terminal else LineProgress)


def _display(kind: type[Progress]) -> Progress:
    return kind(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=notes,
        transient=True,
    )


class Bars:
    """Shows progress bars of other packages as further tasks of a display, or without a terminal as part of its
    stage."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._tasks: dict[int, TaskID] = {}
        self.text = ""

    def show(self, key: int, name: str, completed: float, total: float | None) -> None:
        if key not in self._tasks:
            self._tasks[key] = self._bar.add_task(name, total=total)
        self._bar.update(self._tasks[key], description=name, completed=completed, total=total)
        self.text = f", {name} {completed:g}{'' if total is None else f' of {total:g}'}"

    def hide(self, key: int) -> None:
        if key in self._tasks:
            self._bar.remove_task(self._tasks.pop(key))
        self.text = ""


class _Sink(io.StringIO):
    """Output of a progress bar. It claims to be a terminal, because some bars print nothing without one."""

    def write(self, text: str) -> int:
        return len(text)

    def isatty(self) -> bool:
        return True


@contextmanager
def foreign_bars(display: Bars) -> Iterator[None]:
    """Show every tqdm bar that starts in the block in our display, such as conversions of transformers and downloads
    from the hub."""
    from tqdm.std import tqdm

    sink = _Sink()
    begin, close = tqdm.__init__, tqdm.close

    def begin_silently(bar: Any, *arguments: Any, **options: Any) -> None:
        options["file"] = sink
        begin(bar, *arguments, **options)

    def show(bar: Any, msg: str | None = None, pos: int | None = None) -> bool:
        display.show(id(bar), (bar.desc or "").rstrip(": "), bar.n, bar.total)
        return True

    def hide(bar: Any) -> None:
        close(bar)
        display.hide(id(bar))

    original = {name: getattr(tqdm, name) for name in ("__init__", "display", "close")}
    tqdm.__init__, tqdm.display, tqdm.close = begin_silently, show, hide
    try:
        yield
    finally:
        for name, method in original.items():
            setattr(tqdm, name, method)


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Show the elapsed time of work of unknown length, and progress bars of other packages. Yields a function `note`,
    which also sets the name of the stage."""
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
            note(f"{stage}{bars.text} ({time.monotonic() - started:.0f} s)")

    done = threading.Event()
    lines = threading.Thread(target=print_lines, name="progress lines", daemon=True)
    with _display(Progress) as bar:
        bars = Bars(bar)
        task = bar.add_task(what, total=None)
        if not notes.is_terminal:
            lines.start()
        try:
            with foreign_bars(bars):
                yield enter
        finally:
            done.set()
            if lines.is_alive():
                lines.join()


@contextmanager
def steps(what: str, total: int | None) -> Iterator[Callable[[str], None]]:
    """Show progress by steps, and progress bars of other packages. Yields a function to call after each step, with the
    step's name."""
    with progress() as bar, foreign_bars(Bars(bar)):
        task = bar.add_task(what, total=total)

        def step(text: str) -> None:
            bar.update(task, advance=1, description=text)

        yield step
