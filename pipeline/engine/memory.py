"""Available memory of this machine, and the number of sequences in a KV cache. Imports no numpy, as `lookahead models`
uses it."""

from __future__ import annotations

from pathlib import Path

import psutil

from pipeline.checkpoint.disk import gigabytes
from pipeline.errors import BuildError, UserError

# Limit and use of a container's memory: control groups of version 2, then 1.
_LIMITS = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))


def slots_for(max_batch_size: int) -> int:
    """Rows of the KV cache: half of them keep finished sequences for reuse."""
    return 2 * max_batch_size


def available_bytes(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that is available without swapping, on this machine and within the container's limit."""
    free = min(_free_bytes(groups / limit, groups / use) for limit, use in _LIMITS)
    return int(min(free, psutil.virtual_memory().available))


def _free_bytes(limit: Path, use: Path) -> float:
    """Bytes that a control group may still use, cached files included; infinite without a limit."""
    try:
        counters = dict(line.split() for line in limit.with_name("memory.stat").read_text().splitlines())
        cached = sum(int(counters.get(f"total_{name}", counters[name])) for name in ("inactive_file", "active_file"))
        return max(0.0, float(limit.read_text()) - float(use.read_text()) + cached)
    except (OSError, ValueError, KeyError):  # "max", or no such group
        return float("inf")


def require_memory(num_bytes: int, purpose: str, remedy: str, error: type[UserError]) -> None:
    """Raise `error` if less than num_bytes is available."""
    available = available_bytes()
    if num_bytes > available:
        raise error(
            f"{purpose} needs about {gigabytes(num_bytes)} of memory; {gigabytes(available)} are available. {remedy}"
        )


def require_cache_memory(num_bytes: int, available: int, num_slots: int, max_seq_len: int, device: str) -> None:
    """Raise BuildError if a KV cache of num_bytes does not fit into the available bytes. device: its name."""
    if num_bytes > available:
        raise BuildError(
            f"A KV cache of {num_slots} sequences (twice engine.max_batch_size, half of them for reuse) of "
            f"engine.max_seq_len = {max_seq_len} tokens takes {gigabytes(num_bytes)}; {gigabytes(available)} "
            f"are available on {device}. Lower one of the two settings."
        )
