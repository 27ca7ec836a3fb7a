"""Load of this machine by other programs during a measurement."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass

import psutil

# Share of the cores above which measured speeds count as disturbed.
BUSY_SHARE = 0.1
# The system counts processor time in hundredths of a second.
SAMPLE_S = 0.5


@dataclass(frozen=True, slots=True)
class MachineLoad:
    """Load of the machine during a measurement. others: cores that other programs used on average. cores: those that
    this process may use."""

    others: float
    cores: int

    @property
    def busy(self) -> bool:
        """Whether the machine was so busy that measured times are too long."""
        return self.others > BUSY_SHARE * self.cores

    def to_text(self) -> str:
        return f"other programs used {self.others:.1f} of {self.cores} cores"


class LoadMeter:
    """Measures the load since its creation. Child processes, also ended ones, count as part of this process."""

    def __init__(self) -> None:
        self._cores = sorted(os.sched_getaffinity(0))
        self._started = self._now()

    def read(self) -> MachineLoad:
        """Mean load since the creation."""
        seconds, used, own = (now - before for now, before in zip(self._now(), self._started, strict=True))
        return MachineLoad(max(0.0, used - own) / seconds if seconds > 0 else 0.0, len(self._cores))

    def _now(self) -> tuple[float, float, float]:
        """Wall time, processor time of all programs on our cores, and that of this process and its children."""
        used = 0.0
        per_core = psutil.cpu_times(percpu=True)
        for times in (per_core[core] for core in self._cores if core < len(per_core)):
            # Linux counts the time of guests as user time as well.
            used += sum(times) - times.idle - times.iowait - times.guest - times.guest_nice
        own = 0.0
        this = psutil.Process()
        for process in (this, *this.children(recursive=True)):
            with suppress(psutil.Error):  # the process has ended
                times_of = process.cpu_times()
                own += times_of.user + times_of.system + times_of.children_user + times_of.children_system
        return time.monotonic(), used, own


def machine_load() -> MachineLoad:
    """Measure the current load."""
    meter = LoadMeter()
    time.sleep(SAMPLE_S)
    return meter.read()
