from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.serving.failure import passing_failure


@pytest.mark.parametrize(
    ("line", "free_ports", "expected"),
    [
        ("failed to start HTTP service: Unavailable - Socket '127.0.0.1:1' already in use", True, "free ports"),
        ("failed to start HTTP service: Unavailable - Socket '127.0.0.1:1' already in use", False, None),
        ("  what():  boost::interprocess::lock_exception", False, "a lock of its own"),
        ("failed to load 'lookahead_bls' version 1: Internal: ConfigError: There is no file.", True, None),
        ("", True, None),
    ],
)
def test_a_start_is_worth_repeating_where_nothing_of_ours_was_wrong(
    line: str, free_ports: bool, expected: str | None, tmp_path: Path
) -> None:
    log = tmp_path / "server.log"
    log.write_text(f"I1 some line\n{line}\n")
    found = passing_failure(log, free_ports)
    assert found is None if expected is None else expected in str(found)
