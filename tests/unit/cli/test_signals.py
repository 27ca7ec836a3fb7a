"""Signals end a command with its cleanup: SIGTERM and Ctrl-C, also where Python or a library drops exceptions, and a
closed terminal. So does a closed stdout."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline import cli
from pipeline.cli import output
from tests.command_line import exit_code, redirected
from tests.patience import PATIENCE_S
from tests.servers import wait_for

COMMAND = """
import os, signal, sys, time
from pipeline.cli import leave_on_signals

class Noticed:
    def __del__(self):
        os.kill(os.getpid(), {number})  # handled before this line ends

def linger(frame, event, argument):
    if event == "return" and frame.f_code.co_name in ("_report_unless_signal", "__del__"):
        time.sleep(0.2)

class Odd:
    def __getattr__(self, name):
        signal.raise_signal({number})

def drop_in_a_library():
    import numpy
    try:
        numpy.dtype(Odd())
    except TypeError:
        pass

with leave_on_signals():
    {how}
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("number", "returncode"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT), (signal.SIGHUP, 129)]
)
@pytest.mark.parametrize(
    "how",
    ["Noticed()", "sys.setprofile(linger); Noticed()", "signal.raise_signal({number})", "drop_in_a_library()"],
)
def test_a_signal_ends_a_command_wherever_it_is_handled(how: str, number: int, returncode: int) -> None:
    code = COMMAND.format(how=how.format(number=int(number)), number=int(number))

    done = subprocess.run([sys.executable, "-c", code], timeout=PATIENCE_S, capture_output=True, check=False)

    assert done.returncode == returncode, done.stderr
    assert b"ignored" not in done.stderr


CONTINUES = """
import signal, time
from pipeline.cli import continue_after, leave_on_signals

with leave_on_signals():
    try:
        signal.raise_signal({number})
    except BaseException as error:
        continue_after(error)
    time.sleep(0.2)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_after_which_the_command_continues_is_not_sent_again(number: int) -> None:
    code = CONTINUES.format(number=int(number))
    subprocess.run([sys.executable, "-c", code], timeout=PATIENCE_S, check=True)


REPLACES = """
import os, signal
import numpy
from pipeline import cli
from pipeline.cli import app

class Odd:
    def __getattr__(self, name):
        signal.raise_signal(number)

def by_python(**options):
    try:
        signal.raise_signal(number)
    finally:
        raise RuntimeError("a lock was not released")

def by_a_library(**options):
    numpy.dtype(Odd())

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    for how in (by_python, by_a_library):
        if not os.fork():
            app.build_app = lambda: how
            cli.main()
        print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


def test_an_error_that_replaces_that_of_a_signal_is_no_bug() -> None:
    done = subprocess.run([sys.executable, "-c", REPLACES], timeout=PATIENCE_S, capture_output=True, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (
        0,
        [b"143", b"143", b"130", b"130", b"129", b"129"],
        b"",
    )


HANGS_UP = """
import sys, time
from pathlib import Path
from pipeline.cli import leave_on_signals
from pipeline.cli.output import note

with leave_on_signals():
    try:
        note("begun")
        Path(sys.argv[1], "begun").touch()
        time.sleep(60)
    finally:
        time.sleep(0.1)
        note("cleaning up")
        Path(sys.argv[1], "cleaned").touch()
"""


def test_a_closed_terminal_ends_a_command_with_its_cleanup(tmp_path: Path) -> None:
    pid, terminal = pty.fork()
    if not pid:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
        os.execv(sys.executable, [sys.executable, "-c", HANGS_UP, str(tmp_path)])
    wait_for((tmp_path / "begun").exists)  # no earlier: the terminal must not be closed within a message
    os.close(terminal)
    _, status = wait_for(lambda: (ended := os.waitpid(pid, os.WNOHANG)) != (0, 0) and ended)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
    assert (tmp_path / "cleaned").exists()


def test_a_command_under_nohup_survives_its_terminal() -> None:
    code = "import signal, pipeline.cli as cli\nwith cli.leave_on_signals(): signal.raise_signal(signal.SIGHUP)"
    ignored = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{code}"
    subprocess.run([sys.executable, "-c", ignored], timeout=PATIENCE_S, check=True)


@pytest.fixture
def no_reader() -> Iterator[int]:
    """The end of a pipe whose reader has ended."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.parametrize(
    "command",
    ["models --json", "models", "--version", "", "--help", "trie build --help", "trie build rows.jsonl --out -"],
)
def test_a_command_whose_reader_has_ended_exits_as_if_by_sigpipe_and_without_a_message(
    command: str,
    no_reader: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(output, "SECONDS_PER_LINE", PATIENCE_S)  # a trie's loops may have to be compiled first
    Path("rows.jsonl").write_text('{"token_ids": [1, 2, 3]}\n')
    with redirected(1, no_reader):
        assert exit_code(*command.split()) == 128 + signal.SIGPIPE
        sys.stdout.flush()  # as Python does at its end
    assert capsys.readouterr().err == ""


def test_a_process_whose_reader_has_ended_writes_no_message_at_its_end(no_reader: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "--version"],
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        timeout=PATIENCE_S,
        stdout=no_reader,
        stderr=subprocess.PIPE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


def test_a_closed_connection_is_no_closed_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*arguments: object, **options: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("pipeline.server.client.complete", closed)
    with pytest.raises(RuntimeError, match="a process or a server closed its connection"):
        cli.main(("generate", "Hello", "--url", "localhost:1"))
