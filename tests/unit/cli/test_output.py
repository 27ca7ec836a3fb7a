"""Progress on stderr, with and without a terminal."""

from __future__ import annotations

import io
import re
import threading

import pytest
from rich.console import Console

from pipeline.cli import output
from tests.servers import wait_for


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a stderr that is no terminal gets, with a line every ten milliseconds."""
    stream = io.StringIO()
    monkeypatch.setattr(output, "notes", Console(file=stream, soft_wrap=True))
    monkeypatch.setattr(output, "SECONDS_PER_LINE", 0.01)
    return stream


def wait_for_line(stderr: io.StringIO, line: str) -> None:
    """Wait for a line in which S stands for any number of seconds: a busy machine may take more than none."""
    pattern = re.escape(line).replace("S", r"\d+")
    wait_for(lambda: re.search(pattern, stderr.getvalue()))


def test_without_a_terminal_steps_are_lines_with_what_is_left(stderr: io.StringIO) -> None:
    """Also while a long step is under way."""
    with output.steps("comparing", 3) as step:
        wait_for_line(stderr, "comparing: 0 of 3")
        for number in range(3):
            step(f"prompt {number}")
            wait_for_line(stderr, f"prompt {number}: {number + 1} of 3")
    assert "prompt 2: 3 of 3, 0 s left\n" in stderr.getvalue()


def test_names_and_texts_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    output.say("[/a] :car: [red]x")
    output.note("[/b] :car: [red]x")
    output.table(["[/c]", ":car:"], [("[/d]", "[red]:smile:")], title="[/e] :car:")
    printed = capsys.readouterr()
    assert "[/a] :car: [red]x" in printed.out
    assert "[/b] :car: [red]x" in printed.err
    for text in ("[/c]", "[/d]", "[red]:smile:", "[/e] :car:"):
        assert text in printed.out


def test_short_work_prints_nothing_without_a_terminal(stderr: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "SECONDS_PER_LINE", 10.0)
    with output.working("building"), output.steps("comparing", 1) as step:
        step("prompt")
    assert stderr.getvalue() == ""


def test_a_bar_shows_a_name_as_it_is() -> None:
    stream = io.StringIO()
    with output.progress() as bar:
        bar.add_task("insert [/a] [red].jsonl")
        Console(file=stream, width=100).print(bar.get_renderable())
    assert "insert [/a] [red].jsonl" in stream.getvalue()


@pytest.mark.parametrize("width", [40, 80])
def test_in_a_narrow_terminal_the_text_is_cut_and_the_times_are_whole(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(output, "notes", Console(file=stream, width=width))
    with output.progress() as bar:
        bar.add_task("engine: converting 98 MB of weights to float32 for torch on cpu", total=None)
        output.notes.print(bar.get_renderable())
        bar.add_task("measuring", total=4)
        output.notes.print(bar.get_renderable())
    alone, unknown, counted = stream.getvalue().splitlines()
    assert re.fullmatch(r".*engi.*….* 0:00:\d\d +", alone)
    assert re.fullmatch(r".*engi.*….* 0:00:\d\d +", unknown)
    assert re.fullmatch(r".*meas.* 0% 0:00:\d\d -:--:--", counted)


def test_work_of_unknown_length_shows_its_stage_until_it_ends(stderr: io.StringIO) -> None:
    with output.working("building") as note:
        wait_for_line(stderr, "building (S s)")
        note("converting")
        wait_for_line(stderr, "converting (S s)")
    assert "\nconverting\n" in stderr.getvalue()


def test_progress_of_a_stage_gets_no_line_of_its_own(stderr: io.StringIO) -> None:
    with output.working("building") as note:
        note("compiling")
        note("compiling: 1 done")
        wait_for_line(stderr, "compiling: 1 done (S s)")
        note("compiling: 2 done")
        note("writing")
    lines = stderr.getvalue().splitlines()
    assert [line for line in lines if line and "(" not in line] == ["compiling", "writing"]


def test_a_terminal_shows_the_progress_of_a_stage_with_a_long_name(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(output, "notes", Console(file=stream, width=40, force_terminal=True))
    with output.working("building") as note:
        note("compiling the loops of drafting and of the CPU engine")
        note("compiling the loops of drafting and of the CPU engine: 124 done")
    assert re.search(r" 124 done .*0:00:\d\d", stream.getvalue())


def test_lines_end_with_work_that_fails(stderr: io.StringIO) -> None:
    def printing() -> bool:
        return any(thread.name == "progress lines" for thread in threading.enumerate())

    working = output.working("building")
    working.__enter__()
    assert printing()
    assert not working.__exit__(ValueError, ValueError("full"), None)
    assert not printing()


def test_bars_of_other_packages_are_shown_by_our_display(
    stderr: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    from tqdm.auto import tqdm

    with output.working("building"):
        for tensor in tqdm(range(3), desc="converting", mininterval=0):
            wait_for_line(stderr, f"building (S s); converting: {tensor} of 3")
    assert capsys.readouterr().err == ""
    with tqdm(total=1, desc="afterwards"):
        pass
    assert "afterwards" in capsys.readouterr().err


def test_bars_of_other_packages_during_steps_are_not_printed(
    stderr: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    from tqdm.auto import tqdm

    with output.steps("comparing", 1), tqdm(total=1, desc="converting", mininterval=0) as bar:
        bar.update(1)
    assert capsys.readouterr().err == ""


def test_a_bar_is_a_task_with_its_total_until_it_is_closed() -> None:
    from tqdm.auto import tqdm

    with output.progress() as shown:
        bar = tqdm(total=4, desc="download", mininterval=0)
        bar.update(3)
        (task,) = shown.tasks
        assert (task.description, task.completed, task.total) == ("download", 3, 4)
        bar.close()
        assert not shown.tasks
