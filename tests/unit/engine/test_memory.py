"""Available memory: limits of containers and machines, and the error if it is too little."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from pipeline.engine.memory import available_bytes, require_memory
from pipeline.errors import BuildError


@pytest.mark.parametrize(
    ("folder", "names", "prefix"),
    [
        ("", ("memory.max", "memory.current"), ""),
        ("memory", ("memory.limit_in_bytes", "memory.usage_in_bytes"), "total_"),
    ],
)
def test_the_limit_of_a_container_counts(tmp_path: Path, folder: str, names: tuple[str, str], prefix: str) -> None:
    group = tmp_path / folder
    group.mkdir(exist_ok=True)
    for name, value in zip(names, (1000, 700), strict=True):
        (group / name).write_text(f"{value}\n")
    (group / "memory.stat").write_text(
        f"anon 5\ninactive_file 1\nactive_file 2\n{prefix}inactive_file 50\n{prefix}active_file 60\n"
    )

    assert available_bytes(tmp_path) == 410


def test_without_a_limit_the_machine_counts(tmp_path: Path) -> None:
    for name, value in (("memory.max", "max"), ("memory.current", "7"), ("memory.stat", "inactive_file 1\n")):
        (tmp_path / name).write_text(value)

    assert 0 < available_bytes(tmp_path) <= psutil.virtual_memory().total
    assert 0 < available_bytes(tmp_path / "none") <= psutil.virtual_memory().total


def test_too_little_memory_is_reported_with_the_available_amount() -> None:
    with pytest.raises(BuildError, match=r"A purpose needs about .* GB of memory; .* are available\. Do this\."):
        require_memory(1 << 60, "A purpose", "Do this.", BuildError)
