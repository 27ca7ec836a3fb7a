"""Start, stop and failure of a server, with a small script in the place of tritonserver."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.config.places import places
from pipeline.config.schema import ServerConfig
from pipeline.errors import ServerError
from pipeline.serving.command import StartCommand, is_plain, plain_names
from pipeline.serving.failure import explain_failure
from pipeline.serving.figures import read_metrics
from pipeline.serving.guard import MARK, shm_files
from pipeline.serving.installation import VARIABLE, check_paths, find_installation
from pipeline.serving.log import crash_log
from pipeline.serving.ports import Ports, choose_ports
from pipeline.serving.server import (
    STATE,
    RunningServer,
    find_server,
    is_ready,
    start_server,
    stop_server,
)

FREE = ServerConfig(http_port=0, grpc_port=0, metrics_port=0, startup_timeout_s=20)

# Answers "ready", leaves a child and a shared memory region behind, and does not clean up after itself.
SERVER = """#!{python}
import http.server, pathlib, subprocess, sys
flags = dict(argument.lstrip("-").split("=", 1) for argument in sys.argv[1:] if "=" in argument)
prefix = flags["backend-config"].split("shm-region-prefix-name=")[1]
pathlib.Path("/dev/shm", prefix + "-region").touch()
subprocess.Popen(["sleep", "600"])
{body}
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *arguments):
        pass
http.server.HTTPServer(("127.0.0.1", int(flags["http-port"])), Handler).serve_forever()
"""


# Takes its time after SIGTERM, as Triton does while requests run.
SLOW_END = """
import signal, time
def end(number, frame):
    time.sleep(1)
    print("finished what was running", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "tritonserver"
    monkeypatch.setenv(VARIABLE, str(path))
    write(path)
    yield path
    stop_server(tmp_path / "run")


def write(path: Path, body: str = "") -> None:
    path.write_text(SERVER.format(python=sys.executable, body=body))
    path.chmod(0o755)


def start(tmp_path: Path, config: ServerConfig = FREE, **keywords: Any) -> RunningServer:
    return start_server(
        tmp_path / "repository", tmp_path / "run", config, places=places(), model="m", profile="p", **keywords
    )


def processes_of(server_id: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # not ours to look at, or gone
            if process.environ().get(MARK) == server_id:
                found.append(process)
    return found


def assert_gone(server: RunningServer) -> None:
    deadline = time.monotonic() + 20
    while (processes_of(server.state.server_id) or shm_files(server.state.server_id)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not processes_of(server.state.server_id)
    assert not shm_files(server.state.server_id)
    assert find_server(server.run_dir) is None


def test_a_stopped_server_leaves_nothing_behind(fake, tmp_path):
    server = start(tmp_path)
    assert find_server(tmp_path / "run") == server.state
    assert len(processes_of(server.state.server_id)) == 3
    assert shm_files(server.state.server_id)

    server.stop()
    server.stop()

    assert_gone(server)


def test_paths_that_a_shell_would_split_get_other_names_that_go_with_the_server(fake, tmp_path):
    repository = tmp_path / "models of é & co"
    repository.mkdir()
    server = start_server(repository, tmp_path / "run", FREE, places=places(), model="m", profile="p")
    (tritonserver,) = (p for p in processes_of(server.state.server_id) if str(fake) in p.cmdline())
    (name,) = (word.partition("=")[2] for word in tritonserver.cmdline() if word.startswith("--model-repository="))
    assert is_plain(Path(name))
    assert Path(name).samefile(repository)
    assert server.state.repository == str(repository)

    server.stop()

    assert_gone(server)


def test_plain_paths_keep_their_names():
    names, links = plain_names("la1", repository=Path("/srv/my-engines/v1.2_a"))
    assert names == {"repository": Path("/srv/my-engines/v1.2_a")}
    assert not links


@pytest.mark.parametrize(("folder", "remedy"), [("home", "Move the project"), ("engines", "Set LOOKAHEAD_ENGINES")])
def test_folders_that_the_backend_cannot_open_are_refused(folder, remedy):
    with pytest.raises(ServerError, match=rf"/srv/modèles has letters outside of ASCII; .*{remedy}"):
        check_paths(replace(places(), **{folder: Path("/srv/modèles")}))


def test_another_process_can_stop_it(fake, tmp_path):
    server = start(tmp_path, detach=True)

    assert stop_server(tmp_path / "run") == server.state
    assert stop_server(tmp_path / "run") is None
    assert_gone(server)


@pytest.mark.parametrize("victim", ["guard", "server", "both"])
def test_whatever_is_killed_nothing_is_left_and_the_next_start_works(fake, tmp_path, victim):
    server = start(tmp_path)
    processes = processes_of(server.state.server_id)
    guard = [process for process in processes if process.pid == server.state.guard_pid]
    tritonserver = [process for process in processes if str(fake) in process.cmdline()]
    for process in {"guard": guard, "server": tritonserver, "both": guard + tritonserver}[victim]:
        process.send_signal(signal.SIGKILL)
    server.wait()

    assert find_server(tmp_path / "run") is None
    assert_gone(server)
    again = start(tmp_path)
    again.stop()
    assert_gone(again)


@pytest.mark.parametrize("victim", ["guard", "server"])
def test_the_log_of_a_server_that_died_is_kept_and_one_that_was_stopped_is_not(fake, tmp_path, victim):
    write(fake, 'print("words before the end", flush=True)')
    notes: list[str] = []
    server = start(tmp_path, note=notes.append)
    assert not any("log is kept" in note for note in notes)
    pid = server.state.guard_pid
    if victim == "server":
        pid = next(p.pid for p in processes_of(server.state.server_id) if str(fake) in p.cmdline())
    psutil.Process(pid).send_signal(signal.SIGKILL)
    server.wait()
    assert find_server(tmp_path / "run") is None
    assert_gone(server)
    assert crash_log(tmp_path / "run") == tmp_path / "run" / "server.log"

    again = start(tmp_path, note=notes.append)
    kept = tmp_path / "run" / "server.log.1"
    assert any(str(kept) in note for note in notes)
    assert "words before the end" in kept.read_text()
    if victim == "server":
        assert "ended by itself (exit code -9)" in kept.read_text()

    again.stop()
    assert "was stopped (SIGTERM)" in (tmp_path / "run" / "server.log").read_text()
    start(tmp_path).stop()
    assert not (tmp_path / "run" / "server.log.2").exists()


def test_a_server_that_is_drained_finishes_what_runs(fake, tmp_path):
    write(fake, SLOW_END)
    server = start(tmp_path, detach=True)

    assert stop_server(tmp_path / "run", drain=True) == server.state

    assert "finished what was running" in server.log_path.read_text()
    assert "was stopped (SIGUSR1)" in server.log_path.read_text()
    assert_gone(server)


def test_processes_in_sessions_of_their_own_end_with_the_server(fake, tmp_path):
    write(fake, 'subprocess.Popen(["sleep", "600"], start_new_session=True)')
    server = start(tmp_path)
    assert len(processes_of(server.state.server_id)) == 4

    psutil.Process(next(p.pid for p in processes_of(server.state.server_id) if str(fake) in p.cmdline())).send_signal(
        signal.SIGKILL
    )
    server.wait()

    assert_gone(server)


def test_what_outlives_the_processes_is_removed_by_its_command(fake, tmp_path):
    removed = tmp_path / "removed"
    server_command = [sys.executable, str(fake)]

    def make(ports: Ports, server_id: str) -> StartCommand:
        argv = [
            *server_command,
            f"--http-port={ports.http}",
            f"--backend-config=python,shm-region-prefix-name={server_id}",
        ]
        return StartCommand(argv, dict(os.environ), ("touch", str(removed)))

    server = start(tmp_path, make_command=make)
    assert not removed.exists()
    server.stop()

    assert removed.exists()
    assert_gone(server)


def test_the_server_ends_with_the_process_that_started_it(fake, tmp_path):
    script = (
        "import os, pathlib, sys; from tests.unit.serving.test_server import start;"
        "start(pathlib.Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    assert subprocess.run(command, cwd=places().home, timeout=60).returncode == -signal.SIGKILL
    state = find_server(tmp_path / "run")
    deadline = time.monotonic() + 20
    while state is not None and processes_of(state.server_id) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert state is None or not processes_of(state.server_id)
    assert find_server(tmp_path / "run") is None


def test_one_server_per_run_folder(fake, tmp_path):
    server = start(tmp_path)
    with pytest.raises(ServerError, match="already runs"):
        start(tmp_path)
    server.stop()


def test_a_server_that_ends_at_once_is_explained_and_leaves_nothing(fake, tmp_path):
    write(fake, 'sys.exit("error: creating server: something odd")')

    with pytest.raises(ServerError, match=r"ended before it was ready(.|\n)*something odd"):
        start(tmp_path)

    assert find_server(tmp_path / "run") is None
    assert not shm_files("la" + "x")


def test_a_server_that_never_gets_ready_is_stopped(fake, tmp_path):
    write(fake, "import time; time.sleep(600)")

    with pytest.raises(ServerError, match="not ready after 1 s"):
        start(tmp_path, FREE.model_copy(update={"startup_timeout_s": 1.0}))

    assert find_server(tmp_path / "run") is None


def test_free_ports_differ_and_taken_or_equal_ones_are_named():
    ports = choose_ports(FREE)
    assert len(set(ports)) == 3

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises(ServerError, match=rf"Port {number} \(server.grpc_port\).*server.grpc_port=0"):
            choose_ports(FREE.model_copy(update={"grpc_port": number}))
    with pytest.raises(ServerError, match="are the same"):
        choose_ports(ServerConfig(http_port=8001))


@pytest.mark.parametrize("host", ["localhost", "no.host.invalid", "192.0.2.1", "::1"])
def test_a_host_that_is_not_this_machine_is_refused_as_such(host):
    with pytest.raises(ServerError, match=f"server.host is {host}, where the server cannot listen"):
        choose_ports(ServerConfig(host=host, http_port=0, grpc_port=0, metrics_port=0))


def test_a_proxy_is_not_asked_for_our_own_server(fake, tmp_path, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    server = start(tmp_path)

    assert is_ready(server.state)
    assert read_metrics(server.state.http_url) == {}


def test_a_server_that_is_stopped_before_it_is_ready_did_not_crash(fake, tmp_path):
    write(fake, 'print("loading", flush=True); import time; time.sleep(600)')
    log = tmp_path / "run" / "server.log"
    failures: list[BaseException] = []

    def work() -> None:
        try:
            start(tmp_path)
        except ServerError as error:
            failures.append(error)

    starting = threading.Thread(target=work)
    starting.start()
    while not (log.is_file() and "loading" in log.read_text()):
        time.sleep(0.05)
    assert stop_server(tmp_path / "run") is not None
    starting.join()

    assert "was stopped before it was ready" in str(failures[0])
    assert crash_log(tmp_path / "run") is None


def test_a_server_of_another_kind_of_machine_is_named(fake, tmp_path):
    fake.write_bytes(b"\x7fELF of another machine")

    with pytest.raises(ServerError, match="tritonserver cannot be run: Exec format error"):
        start(tmp_path)
    assert not (tmp_path / "run" / STATE).exists()


def test_a_variable_that_names_no_server_is_refused(tmp_path):
    with pytest.raises(ServerError, match=f"{VARIABLE} is .*no executable"):
        find_installation({VARIABLE: str(tmp_path / "nothing")})


def test_the_variable_wins_over_the_container_and_that_over_the_path(tmp_path):
    servers = {name: tmp_path / name / "tritonserver" for name in ("variable", "container", "path")}
    for path in servers.values():
        path.parent.mkdir()
        path.touch(mode=0o755)
    environment = {"PATH": str(servers["path"].parent), VARIABLE: str(servers["variable"])}

    assert find_installation(environment, servers["container"]).executable == servers["variable"]
    del environment[VARIABLE]
    assert find_installation(environment, servers["container"]).executable == servers["container"]
    assert find_installation(environment, tmp_path / "none").executable == servers["path"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "E11 m.cc:642] \"failed to load 'tensorrt_llm' version 1: Internal: BuildError: There is no engine in /x. "
            'Build it with `lookahead engine`.\\n\\nAt:\\n  /r/model.py(8): initialize\\n"',
            "The model tensorrt_llm could not be loaded: There is no engine in /x. Build it with `lookahead engine`.",
        ),
        (
            "E11 m.cc:642] \"failed to load 'tensorrt_llm' version 1: Internal: Stub process 'tensorrt_llm_0_0' is not "
            'healthy."',
            "The model tensorrt_llm could not be loaded: its process died. Too little memory",
        ),
        ("x: error while loading shared libraries: libre2.so.9: cannot open", "needs libre2.so.9"),
        ("failed to start HTTP service: Unavailable - Socket '127.0.0.1:8000' already in use", "A port of the server"),
        ("something else", "something else"),
    ],
)
def test_a_log_becomes_a_sentence(tmp_path, line, sentence):
    log = tmp_path / "server.log"
    log.write_text(f"I1121 starting\n{line}\nI1121 ending\n")

    assert sentence in explain_failure(log)
