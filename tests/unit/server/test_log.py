"""Kept logs, and the reason of the server's end in a log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.files import log_tail
from pipeline.server import log as module
from pipeline.server.log import (
    KEPT_LOGS,
    LOG,
    MAX_LOG_BYTES,
    VERBOSE_LOG,
    crash_log,
    keep_previous,
    kept_log,
    limit_size,
    was_stopped,
    write_end,
)
from tests.servers import wait_for
from tests.unit.server.fake_server import start


def write(folder: Path, text: str, stopped: bool | None) -> None:
    """A log as a run leaves it. stopped None: its guard was killed, so the last line is missing."""
    (folder / LOG).write_text(text)
    if stopped is not None:
        write_end(folder / LOG, stopped, "test")


@pytest.mark.parametrize(("stopped", "kept"), [(True, False), (False, True), (None, True)])
def test_only_the_log_of_a_server_that_was_not_stopped_is_kept(tmp_path, stopped, kept):
    write(tmp_path, "words\n", stopped)
    assert was_stopped(tmp_path / LOG) is not kept
    assert crash_log(tmp_path) == (tmp_path / LOG if kept else None)

    moved = keep_previous(tmp_path)

    assert moved == (tmp_path / f"{LOG}.1" if kept else None)
    assert kept_log(tmp_path) == moved
    if kept:
        assert moved.read_text().startswith("words")
        assert not (tmp_path / LOG).exists()


def test_the_newest_crashes_are_kept_in_order(tmp_path):
    for number in range(KEPT_LOGS + 2):
        write(tmp_path, f"run {number}\n", None)
        keep_previous(tmp_path)

    kept = [(tmp_path / f"{LOG}.{place}").read_text() for place in range(1, KEPT_LOGS + 1)]
    assert kept == [f"run {number}\n" for number in (4, 3, 2)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{LOG}.{place}" for place in (1, 2, 3)]


def test_a_stopped_run_between_two_crashes_pushes_none_out(tmp_path):
    write(tmp_path, "crash\n", False)
    keep_previous(tmp_path)
    write(tmp_path, "fine\n", True)

    assert keep_previous(tmp_path) is None
    assert crash_log(tmp_path) == tmp_path / f"{LOG}.1"


def test_without_a_log_there_is_nothing_to_keep_or_show(tmp_path):
    assert keep_previous(tmp_path) is None
    assert crash_log(tmp_path) is None
    assert log_tail(tmp_path / LOG) == ""


def test_what_the_server_itself_writes_is_not_taken_for_its_end(tmp_path):
    write(tmp_path, "lookahead: the server was stopped (a prompt that a model printed)\nmore\n", None)
    assert not was_stopped(tmp_path / LOG)
    assert log_tail(tmp_path / LOG, 1) == "more"


@pytest.mark.parametrize("lost", ["nothing", "file", "folder"])
def test_the_log_of_a_running_server_is_bounded_also_if_it_was_removed(tmp_path, monkeypatch, lost):
    monkeypatch.setattr(module, "MAX_LOG_BYTES", 10)
    path = tmp_path / "run" / LOG
    path.parent.mkdir()
    with path.open("ab") as log, path.open("ab", buffering=0) as writer:
        writer.write(b"short\n")
        limit_size(log)
        assert path.read_bytes() == b"short\n"
        writer.write(b"too long\n")
        if lost != "nothing":
            path.unlink()
        if lost == "folder":
            path.parent.rmdir()
        limit_size(log)
        writer.write(b"goes on\n")

        with open(f"/proc/self/fd/{log.fileno()}", "rb") as written:
            assert written.read() == b"goes on\n"
    if lost != "folder":
        assert (path.parent / f"{LOG}.old").read_bytes() == b"short\ntoo long\n"


def test_the_verbose_log_of_a_running_server_is_bounded(fake, tmp_path):
    server = start(tmp_path)
    path = server.run_dir / VERBOSE_LOG
    path.touch()
    os.truncate(path, MAX_LOG_BYTES + 1)

    wait_for(lambda: not path.stat().st_size)
    assert Path(f"{path}.old").stat().st_size == MAX_LOG_BYTES + 1
    server.stop()
