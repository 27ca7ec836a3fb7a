"""Threads of the engine: their number, and how they wait."""

from __future__ import annotations

import math
import os
from pathlib import Path

# How many threads compute a pass. Read by torch too, once, when it is imported.
NUM_THREADS = "OMP_NUM_THREADS"
# A variable and its value, for `environment.setdefault(*WAIT_POLICY)` before torch is imported: OpenMP reads it once.
# Where other processes use the cores too, threads that spin at every barrier wait for a descheduled thread: next to one
# busy process on two cores, a step took seven times as long (docs/decisions/004).
WAIT_POLICY = ("OMP_WAIT_POLICY", "PASSIVE")


def available_cores(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores that this process may use: those it is bound to, or fewer where its container (control groups of version 2
    or 1) gets the time of fewer."""
    return max(1, math.ceil(min(len(os.sched_getaffinity(0)), _quota(groups))))


def _quota(groups: Path) -> float:
    """Processor time per time of a control group; infinite without a limit."""
    try:
        if (limit := groups / "cpu.max").exists():
            quota, period = limit.read_text().split()
        else:
            quota, period = ((groups / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return float(quota) / float(period) if float(quota) > 0 else math.inf
    except (OSError, ValueError):  # "max", or no such group
        return math.inf
