"""The guard starts a server again, so often and no more."""

from __future__ import annotations

import signal

import pytest

from pipeline.errors import ServerError
from pipeline.server.restart_limit import RestartLimit
from pipeline.server.server import stop_server
from pipeline.server.state import STATE, find_server, is_ready
from tests.servers import wait_for
from tests.unit.server.fake_server import FREE, assert_gone, hurry_guards, start, tritonserver_of, write


def test_a_server_that_was_ready_and_dies_is_started_again_so_often_and_then_stays_down(fake, tmp_path):
    server = start(tmp_path, FREE.model_copy(update={"max_restarts": 2}))
    dead = []
    for _ in range(3):
        process = wait_for(lambda: (p := tritonserver_of(server, fake)) is not None and p.pid not in dead and p)
        assert wait_for(lambda: is_ready(server.state))
        dead.append(process.pid)
        process.send_signal(signal.SIGKILL)

    assert server.guard.wait() != 0
    assert len(set(dead)) == 3
    text = server.log_path.read_text()
    assert "lookahead: restart 2 (signal 9, Killed)" in text
    assert text.splitlines()[-1] == "lookahead: the server ended by itself (signal 9, Killed)"
    assert_gone(server)


@pytest.mark.parametrize(
    ("failure", "reason"), [("os.abort()", "signal 6, Aborted"), ("time.sleep(600)", "it did nothing for 3 s before")]
)
def test_a_start_at_which_triton_aborts_or_hangs_is_no_further_restart(failure, reason, fake, tmp_path, monkeypatch):
    hurry_guards(monkeypatch, hang_seconds=3.0)
    server = start(tmp_path, FREE.model_copy(update={"max_restarts": 1}))
    flag = str(tmp_path / "failed")
    write(fake, f"if not os.path.exists({flag!r}):\n    os.mkdir({flag!r})\n    {failure}\n")
    tritonserver_of(server, fake).send_signal(signal.SIGKILL)

    state = wait_for(lambda: (s := find_server(server.run_dir)) and s.restarts == 2 and is_ready(s) and s)
    assert state.restart_reason.startswith(reason)
    tritonserver_of(server, fake).send_signal(signal.SIGKILL)
    assert server.guard.wait() != 0
    assert_gone(server)


def test_a_server_is_started_again_although_the_disk_is_full(fake, tmp_path):
    server = start(tmp_path, FREE.model_copy(update={"max_restarts": 1}))
    server.log_path.unlink()
    server.log_path.symlink_to("/dev/full")
    state_path, target = server.run_dir / STATE, server.run_dir / ("s" * 250)
    state_path.rename(target)
    state_path.symlink_to(target)  # the name of a temporary file beside the target would be too long
    dead = tritonserver_of(server, fake)
    dead.send_signal(signal.SIGKILL)

    wait_for(lambda: (p := tritonserver_of(server, fake)) is not None and p.pid != dead.pid and is_ready(server.state))
    assert find_server(server.run_dir) == server.state
    server.stop()
    assert_gone(server)


def test_restarts_of_long_ago_do_not_count(fake, tmp_path, monkeypatch):
    hurry_guards(monkeypatch, restart_window_s=0.0)
    server = start(tmp_path, FREE.model_copy(update={"max_restarts": 1}))
    for number in (1, 2, 3):
        wait_for(lambda: tritonserver_of(server, fake)).send_signal(signal.SIGKILL)
        wait_for(lambda number=number: (s := find_server(server.run_dir)) and s.restarts == number and is_ready(s))
    server.stop()
    assert_gone(server)


def test_a_server_that_dies_before_it_was_ready_is_not_started_again(fake, tmp_path):
    write(fake, 'print("begins", flush=True); sys.exit(3)')

    with pytest.raises(ServerError, match="ended before it was ready"):
        start(tmp_path, FREE.model_copy(update={"max_restarts": 2}))

    assert (tmp_path / "run" / "server.log").read_text().count("begins") == 1


def test_a_server_that_is_stopped_while_it_is_started_again_stays_stopped(fake, tmp_path):
    server = start(tmp_path, FREE.model_copy(update={"max_restarts": 2}), detach=True)
    tritonserver_of(server, fake).send_signal(signal.SIGKILL)

    stopped = stop_server(tmp_path / "run")

    assert stopped is not None
    assert stopped.server_id == server.state.server_id  # the state may count the restart already

    assert_gone(server)


def test_a_transient_failure_is_free_unless_there_are_too_many_in_a_row():
    limit = RestartLimit(2, 600.0)
    assert limit.permits_restart(transient=False)
    limit.add()
    for _ in range(2):
        assert limit.permits_restart(transient=True)
        limit.add()
    assert not limit.permits_restart(transient=True)
    assert limit.permits_restart(transient=False)
    limit.add()
    assert limit.permits_restart(transient=True)
    assert not limit.permits_restart(transient=False)


def test_without_restarts_none_is_permitted():
    assert not RestartLimit(0, 600.0).permits_restart(transient=False)
    assert not RestartLimit(0, 600.0).permits_restart(transient=True)
