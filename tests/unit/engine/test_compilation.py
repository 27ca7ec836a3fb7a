"""Progress of the compilation in `make setup`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipeline.engine import compilation
from pipeline.engine.compilation import COMPILING


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """Text that is printed while three loops are compiled."""

    def compiled(note: Callable[[str], None]) -> None:
        note(COMPILING)
        for number in (1, 2, 3):
            note(f"{COMPILING}: {number} done")

    def run() -> str:
        compilation.main()
        return capsys.readouterr().err

    monkeypatch.setattr(compilation, "ensure_compiled", compiled)
    return run


def test_a_terminal_shows_the_number_of_loops_in_a_short_line(
    printed: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    begin, end = f"{COMPILING}\n\r\x1b[K1 done\r\x1b[K2 done\r\x1b[K3 done\r\x1b[K", "The compiled loops are in "
    assert printed().startswith(begin + end)


@pytest.mark.parametrize(("seconds", "lines"), [(0.0, ["1 done", "2 done", "3 done"]), (10.0, [])])
def test_without_a_terminal_there_is_a_line_every_few_seconds(
    seconds: float, lines: list[str], printed: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "SECONDS_PER_LINE", seconds)
    assert printed().splitlines()[:-1] == [COMPILING, *lines]
