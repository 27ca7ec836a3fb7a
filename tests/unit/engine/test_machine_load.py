"""The load of other programs excludes the measuring process and its children."""

from __future__ import annotations

import time
from collections import namedtuple

import psutil
import pytest

from pipeline.engine.machine_load import LoadMeter, MachineLoad

Times = namedtuple("Times", "user system idle iowait guest guest_nice")
Own = namedtuple("Own", "user system children_user children_system")


class FakeMachine:
    """Two cores and one process whose clocks the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = self.used = self.own = self.child = self.ended = 0.0
        monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
        monkeypatch.setattr(time, "monotonic", lambda: self.seconds)
        monkeypatch.setattr(psutil, "cpu_times", lambda percpu: [self.core(), self.core(), Times(99, 99, 0, 0, 0, 0)])
        monkeypatch.setattr(psutil, "Process", lambda: self)

    def core(self) -> Times:
        return Times(self.used / 2, 0.0, self.seconds - self.used / 2, 0.0, 0.0, 0.0)

    def children(self, recursive: bool) -> list[FakeChild]:
        return [FakeChild(self.child)] if self.child else []

    def cpu_times(self) -> Own:
        return Own(self.own, 0.0, self.ended, 0.0)


class FakeChild:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def cpu_times(self) -> Own:
        return Own(0.0, self.seconds, 0.0, 0.0)


def test_own_time_and_that_of_children_is_not_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine(monkeypatch)
    meter = LoadMeter()
    machine.seconds, machine.used, machine.own, machine.child = 10.0, 18.0, 8.0, 5.0
    load = meter.read()
    assert load.cores == 2
    assert load.others == pytest.approx(0.5)
    assert load.busy


def test_the_time_of_a_child_that_ended_is_not_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine(monkeypatch)
    machine.used = machine.child = 5.0
    meter = LoadMeter()
    machine.seconds, machine.used, machine.own, machine.ended, machine.child = 10.0, 18.0, 4.0, 14.0, 0.0
    assert meter.read().others == pytest.approx(0.0)


def test_a_machine_that_only_measures_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine(monkeypatch)
    meter = LoadMeter()
    machine.seconds, machine.used, machine.own = 10.0, 20.0, 20.0
    assert meter.read() == MachineLoad(0.0, 2)
    assert not meter.read().busy


def test_a_clock_of_hundredths_gives_no_load_below_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine(monkeypatch)
    meter = LoadMeter()
    machine.seconds, machine.used, machine.own = 1.0, 0.99, 1.0
    assert meter.read().others == 0.0


def test_this_machine_can_be_read() -> None:
    load = LoadMeter().read()
    assert load.cores >= 1
    assert load.others >= 0
