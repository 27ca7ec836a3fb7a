"""Closing a server for new requests while the running ones finish."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from pipeline.errors import BusyError
from pipeline.triton_models.drain_lock import DrainLock, drained
from pipeline.triton_models.handover import prepare_handover
from tests.patience import PATIENCE_S


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    prepare_handover(tmp_path)
    return tmp_path


def require_open(lock: DrainLock) -> None:
    with lock.admitted():
        pass


def require_open_until_closed(lock: DrainLock) -> None:
    while True:
        require_open(lock)


def test_requests_are_admitted_before_a_drain_and_again_after_it(folder):
    lock = DrainLock(folder)
    with lock.admitted(), lock.admitted():
        require_open(lock)
    with drained([folder], 5) as have_ended:
        assert have_ended == [True]
        with pytest.raises(BusyError, match="send the request again"):
            require_open(lock)
    require_open(lock)


def test_closing_waits_for_what_runs_and_keeps_new_requests_out_meanwhile(folder):
    lock, other = DrainLock(folder), DrainLock(folder)  # two instances of the model
    was_closed = threading.Event()
    running = ExitStack()
    for one in (lock, lock, other):
        running.enter_context(one.admitted())

    def close() -> None:
        with drained([folder], 30) as have_ended:
            assert have_ended == [True]
            was_closed.set()

    thread = threading.Thread(target=close)
    thread.start()
    for one in (lock, other):
        with pytest.raises(BusyError):
            require_open_until_closed(one)
    assert not was_closed.wait(0.2)
    running.close()
    assert was_closed.wait(PATIENCE_S)
    thread.join()
    require_open(lock)


def test_patience_has_an_end(folder):
    lock = DrainLock(folder)
    with lock.admitted(), drained([folder], 0.1) as have_ended:
        assert have_ended == [False]


def test_one_server_does_not_wait_for_another_to_be_drained(tmp_path):
    folders = [tmp_path / name for name in ("busy", "idle")]
    for folder in folders:
        folder.mkdir()
        prepare_handover(folder)
    busy, idle = map(DrainLock, folders)

    with busy.admitted(), drained(folders, 0.1) as have_ended:
        assert have_ended == [False, True]
        for lock in (busy, idle):
            with pytest.raises(BusyError):
                require_open(lock)


def test_a_killed_process_drains_no_longer(folder):
    code = f"""
import os, pathlib
from pipeline.triton_models.drain_lock import drained
with drained([pathlib.Path({str(folder)!r})], 5):
    os._exit(1)
"""
    subprocess.run([sys.executable, "-c", code], check=False, timeout=PATIENCE_S)
    require_open(DrainLock(folder))


def test_a_server_that_nobody_will_drain_takes_all_requests():
    require_open(DrainLock(None))
