"""Output of the commands: results on stdout, notes and progress on stderr."""

from __future__ import annotations

import io
import json
import select
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from pipeline.cli.tables import fitted
from pipeline.engine.compilation import SECONDS_PER_LINE


def _raise(console: Console) -> None:
    raise  # the BrokenPipeError, which `app` handles for every way of writing


# rich would exit with code 1. It does so in all consoles, of which typer makes its own for help texts.
Console.on_broken_pipe = _raise  # type: ignore[assignment]

# Without a terminal, tables are as wide as their content instead of 80 columns.
# Emoji codes are off: paths and outputs of models may contain texts such as ":car:".
console = Console(highlight=False, soft_wrap=True, emoji=False, width=None if sys.stdout.isatty() else 160)
notes = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def has_lost_reader() -> bool:
    """Whether stdout is a pipe or a socket whose reader has ended."""
    poll = select.poll()
    poll.register(1, 0)
    return bool(poll.poll(0))


def results_to_stderr() -> None:
    """Print all further results on stderr, because an output file is stdout."""
    console.stderr = True


def say(text: str) -> None:
    """Print a line of the result on stdout."""
    console.print(text, markup=False)


def write(text: str) -> None:
    """Print a part of a line of the result at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def note(text: str) -> None:
    """Print a note, which is not part of the result. A stderr that takes nothing does not end the command, such as a
    server's log on a full disk. If the reader of stdout has ended too, as in `2>&1 | head`, the command ends."""
    try:
        notes.print(text, markup=False, style="dim")
    except OSError:
        if has_lost_reader():
            raise


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """Print a table on stdout; cells are converted with str()."""
    if title:
        console.print(Text(title, style="italic"), soft_wrap=False)
    for part in fitted(columns, [[str(cell) for cell in row] for row in rows], console.width):
        console.print(part, soft_wrap=False)


def records(rows: Iterable[Mapping[str, object]], title: str | None = None) -> None:
    """Print a table of rows by column heading; all rows have the same headings. Without rows nothing is printed."""
    if listed := list(rows):
        table(list(listed[0]), [list(row.values()) for row in listed], title)


def print_json(value: Any) -> None:
    """Print the result as JSON on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False), file=console.file)


@contextmanager
def progress() -> Iterator[Progress]:
    """Show progress on stderr, with the bars of other packages as further tasks: `with progress() as bar: task =
    bar.add_task("weights", total=n)`. Without a terminal it is a line per `SECONDS_PER_LINE`."""
    bar = Progress(
        SpinnerColumn(),
        # In a narrow terminal the text is cut, not the times. rich gives empty columns too little room.
        TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=notes.width // 8),
        TaskProgressColumn(table_column=Column(min_width=1)),
        TimeElapsedColumn(),
        TimeRemainingColumn(table_column=Column(min_width=1)),
        console=notes,
        expand=True,
        transient=True,
        disable=not notes.is_terminal,
    )
    done = threading.Event()

    def print_lines() -> None:
        while not done.wait(SECONDS_PER_LINE):
            if tasks := bar.tasks:
                note("; ".join(map(_line, tasks)))

    lines = threading.Thread(target=print_lines, name="progress lines", daemon=True)
    with bar, foreign_bars(bar):
        if not notes.is_terminal:
            lines.start()
        try:
            yield bar
        finally:
            done.set()
            if lines.is_alive():
                lines.join()


def _line(task: Task) -> str:
    if task.total is None:
        return f"{task.description} ({task.elapsed or 0.0:.0f} s)"
    left = "" if task.time_remaining is None else f", {task.time_remaining:.0f} s left"
    return f"{task.description}: {task.completed:g} of {task.total:g}{left}"


class _Sink(io.StringIO):
    """Discards the output of a progress bar. Reports itself as a terminal, because some bars do not run without one."""

    def write(self, text: str) -> int:
        return len(text)

    def isatty(self) -> bool:
        return True


@contextmanager
def foreign_bars(display: Progress) -> Iterator[None]:
    """Show every tqdm bar that starts in the block as a task of a display, such as conversions of transformers and
    downloads from the hub."""
    from tqdm.std import tqdm

    sink = _Sink()
    tasks: dict[int, TaskID] = {}
    begin, close = tqdm.__init__, tqdm.close

    def begin_silently(bar: Any, *arguments: Any, **options: Any) -> None:
        options["file"] = sink
        begin(bar, *arguments, **options)

    def show(bar: Any, msg: str | None = None, pos: int | None = None) -> bool:
        name = (bar.desc or "").rstrip(": ")
        if id(bar) not in tasks:
            tasks[id(bar)] = display.add_task(name, total=bar.total)
        display.update(tasks[id(bar)], description=name, completed=bar.n, total=bar.total)
        return True

    def hide(bar: Any) -> None:
        close(bar)
        if id(bar) in tasks:
            display.remove_task(tasks.pop(id(bar)))

    original = {name: getattr(tqdm, name) for name in ("__init__", "display", "close")}
    tqdm.__init__, tqdm.display, tqdm.close = begin_silently, show, hide
    try:
        yield
    finally:
        for name, method in original.items():
            setattr(tqdm, name, method)


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Show the elapsed time of work of unknown length. Yields a function `note`, which also sets the name of the stage.
    A text that begins with the last note and a colon is its progress: it gets no line of its own, and a terminal shows
    only what follows the colon."""
    with progress() as bar:
        noted, task = what, bar.add_task(what, total=None)

        def enter(text: str) -> None:
            nonlocal noted
            if text != noted and not text.startswith(f"{noted}: "):
                note(text)
                noted = text
            bar.update(task, description=text.removeprefix(f"{noted}: ") if notes.is_terminal else text)

        yield enter


@contextmanager
def steps(what: str, total: int | None) -> Iterator[Callable[[str], None]]:
    """Show progress by steps. Yields a function to call after each step, with the step's name."""
    with progress() as bar:
        task = bar.add_task(what, total=total)
        yield lambda text: bar.update(task, advance=1, description=text)
