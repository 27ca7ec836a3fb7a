"""Number of the engine's threads, and how they wait."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

# Environment variable with the number of threads of a pass. torch reads it once, at import.
NUM_THREADS = "OMP_NUM_THREADS"
# Variable and value for `environment.setdefault(*WAIT_POLICY)`, before the import of torch, because OpenMP reads it
# once. If other processes use the cores, threads that spin at barriers wait for a descheduled thread: next to one busy
# process on two cores, a step took seven times as long (docs/decisions/004).
WAIT_POLICY = ("OMP_WAIT_POLICY", "PASSIVE")


def wait_by_default(environment: MutableMapping[str, str]) -> None:
    """Remove our default of `WAIT_POLICY`, before OpenMP is loaded. A bench with other engines calls this, so that they
    run as for their users: with threads that sleep, llama.cpp takes three times as long."""
    name, value = WAIT_POLICY
    if environment.get(name) == value:
        del environment[name]


def num_threads(replicas: int = 1, environment: Mapping[str, str] = os.environ) -> int:
    """Number of threads of a pass: the environment variable `NUM_THREADS`, else one per core, where the replicas of a
    server share the cores."""
    asked = environment.get(NUM_THREADS, "")
    return int(asked) if asked.isdecimal() and int(asked) > 0 else max(1, available_cores() // replicas)


def available_cores(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Number of cores that this process may use: limited by its CPU affinity and by the quota of its container (control
    groups of version 2 or 1)."""
    return max(1, math.ceil(min(len(os.sched_getaffinity(0)), _quota(groups))))


def _quota(groups: Path) -> float:
    """Quota of a control group in cores; infinite without a limit."""
    try:
        if (limit := groups / "cpu.max").exists():
            quota, period = limit.read_text().split()
        else:
            quota, period = ((groups / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return float(quota) / float(period) if float(quota) > 0 else math.inf
    except (OSError, ValueError):  # "max", or no such group
        return math.inf
