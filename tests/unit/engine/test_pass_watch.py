"""The watch ends a process whose engine never ends a step, and no other."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from pipeline.engine import pass_watch
from pipeline.engine.pass_watch import PassWatch
from pipeline.engine.submission import Submission
from tests.fakes import TableEngine, make_request, make_scheduler
from tests.patience import PATIENCE_S

HANGS = """
import threading
from pipeline.engine.pass_watch import PassWatch
from pipeline.engine.submission import Submission
from tests.fakes import TableEngine, make_request, make_scheduler

engine, is_in_pass = TableEngine(), threading.Event()

def hang_in_verify(items):
    is_in_pass.set()
    threading.Event().wait()

engine.verify = hang_in_verify
scheduler = make_scheduler(engine=engine)
watch = PassWatch(scheduler, 3.0)
scheduler.start()
scheduler.submit(Submission(make_request(max_new_tokens=4), "none"), print)
is_in_pass.wait()
for number in range(6):
    print("check", number, flush=True)
    watch.check()
"""


def test_a_process_whose_engine_never_ends_a_pass_ends_and_shows_where_it_hangs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )

    assert done.returncode == 1, done.stderr
    # The first check only sees the step.
    assert done.stdout.splitlines()[-1] == "check 4"
    assert "A step of the engine has lasted longer than 3 s (server.gateway.request_timeout_s)" in done.stderr
    assert "hang_in_verify" in done.stderr


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    codes: list[int] = []
    monkeypatch.setattr(pass_watch, "os", SimpleNamespace(_exit=codes.append))
    return codes


def test_a_step_ends_at_the_first_check_after_the_limit(
    ends: list[int], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pass_watch, "CHECK_PERIOD_S", 0.5)
    scheduler = SimpleNamespace(running_step=object())
    watch = PassWatch(scheduler, 1.0)  # type: ignore[arg-type]
    for _ in range(3):
        watch.check()
    assert not ends
    watch.check()
    assert ends == [1]
    shown = capfd.readouterr().err
    assert shown.startswith("A step of the engine has lasted longer than 1 s")
    assert __name__.rpartition(".")[2] in shown.rpartition("These are its threads:")[2]
    # Another step begins.
    scheduler.running_step = object()
    for _ in range(3):
        watch.check()
    assert ends == [1]


def test_neither_idle_time_nor_many_steps_end_the_process(ends: list[int]) -> None:
    engine = TableEngine()
    scheduler = make_scheduler(engine=engine)
    watch, verify = PassWatch(scheduler, 2.0), engine.verify

    def slowly(items: object) -> object:
        watch.check()
        watch.check()
        return verify(items)  # type: ignore[arg-type]

    engine.verify = slowly  # type: ignore[method-assign, assignment]
    for _ in range(5):
        watch.check()
    scheduler.run([Submission(make_request(max_new_tokens=10), "none")])
    for _ in range(5):
        watch.check()

    assert not ends


def test_a_failed_step_has_ended() -> None:
    engine = TableEngine()
    scheduler = make_scheduler(engine=engine)
    engine.verify = lambda items: 1 // 0  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(ZeroDivisionError):
        scheduler.run([Submission(make_request(max_new_tokens=10), "none")])

    assert scheduler.running_step is None
