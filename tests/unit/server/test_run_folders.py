"""The lock of the run folders: one switch or stop at a time."""

from __future__ import annotations

import shutil
import threading
from functools import partial
from pathlib import Path

import pytest

from pipeline.dynamo.fleet_switch import switch_fleet
from pipeline.errors import ServerError
from pipeline.server.run_folders import locked, temporarily
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


class Servers:
    """Servers whose stop raises an error, if there is one."""

    def __init__(self, folder: Path, error: BaseException | None = None) -> None:
        self.folder, self.error, self.num_stops = folder, error, 0

    def stop(self) -> None:
        self.num_stops += 1
        if self.error is not None:
            raise self.error


def test_servers_of_a_block_are_stopped_and_their_folder_is_removed() -> None:
    with temporarily(Servers, on_stop=lambda: None) as servers:
        assert servers.folder.is_dir()
        assert servers.num_stops == 0
    assert servers.num_stops == 1
    assert not servers.folder.exists()

    with pytest.raises(KeyboardInterrupt), temporarily(Servers, on_stop=lambda: None) as servers:
        raise KeyboardInterrupt
    assert servers.num_stops == 1
    assert not servers.folder.exists()


def test_the_folder_stays_for_the_log_that_a_message_names_and_for_guards_that_still_run() -> None:
    with pytest.raises(ServerError), temporarily(Servers, on_stop=lambda: None) as servers:
        raise ServerError("see its log")
    assert servers.num_stops == 1
    shutil.rmtree(servers.folder)

    interrupted = partial(Servers, error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt), temporarily(interrupted, on_stop=lambda: None) as servers:
        pass
    shutil.rmtree(servers.folder)

    made: list[Path] = []

    def start(folder: Path) -> Servers:
        made.append(folder)
        raise ServerError("see its log")

    with pytest.raises(ServerError), temporarily(start, on_stop=lambda: None):
        pass
    shutil.rmtree(made[0])
