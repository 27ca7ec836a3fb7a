"""The lock of the run folders: one switch or stop at a time."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pipeline.dynamo.exchange import switch_fleet
from pipeline.errors import ServerError
from pipeline.server.run_folders import locked
from tests.patience import PATIENCE_S


def unexpected() -> None:
    raise AssertionError("nothing holds the lock")


def test_a_second_switch_is_refused_before_it_touches_the_first(tmp_path: Path) -> None:
    with locked(tmp_path, unexpected), pytest.raises(ServerError, match=r"Another `lookahead switch`.* is running"):
        switch_fleet(None, None, None, tmp_path, print)  # type: ignore[arg-type]  # not used
    with locked(tmp_path, unexpected):
        pass


def test_a_stop_waits_for_the_switch(tmp_path: Path) -> None:
    waits, stopped = threading.Event(), threading.Event()

    def stop() -> None:
        with locked(tmp_path, waits.set):
            stopped.set()

    thread = threading.Thread(target=stop)
    with locked(tmp_path, unexpected):
        thread.start()
        assert waits.wait(PATIENCE_S)
        assert not stopped.is_set()
    thread.join(PATIENCE_S)
    assert stopped.is_set()


def test_without_a_folder_nothing_is_locked_or_made(tmp_path: Path) -> None:
    with locked(tmp_path / "none", unexpected):
        assert not (tmp_path / "none").exists()
