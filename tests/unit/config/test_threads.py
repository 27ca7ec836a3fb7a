"""Number of cores for an engine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.config.threads import WAIT_POLICY, available_cores, wait_by_default

VERSION_2, QUOTA, PERIOD = "cpu.max", "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({VERSION_2: "max 100000\n"}, 8),
        ({VERSION_2: "150000 100000\n"}, 2),
        ({VERSION_2: "10000 100000\n"}, 1),
        ({VERSION_2: "1600000 100000\n"}, 8),
        ({QUOTA: "-1\n", PERIOD: "100000\n"}, 8),
        ({QUOTA: "300000\n", PERIOD: "100000\n"}, 3),
    ],
)
def test_a_container_gets_no_more_threads_than_processor_time(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_cores(tmp_path) == cores


def test_other_engines_of_a_bench_wait_as_their_libraries_do() -> None:
    name, value = WAIT_POLICY
    ours, users = {name: value, "PATH": "/bin"}, {name: "active"}
    wait_by_default(ours)
    wait_by_default(users)
    assert (ours, users) == ({"PATH": "/bin"}, {name: "active"})
