"""Explanations of logs of servers that did not start."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.server import failure
from pipeline.server.failure import explain_failure, transient_failure


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "E11 m.cc:642] \"failed to load 'tensorrt_llm' version 1: Internal: BuildError: There is no engine in /x. "
            'Build it with `lookahead engine`.\\n\\nAt:\\n  /r/model.py(8): initialize\\n"',
            "The model tensorrt_llm could not be loaded: There is no engine in /x. Build it with `lookahead engine`.",
        ),
        (
            "E11 m.cc:642] \"failed to load 'tensorrt_llm' version 1: Internal: Stub process 'tensorrt_llm_0_0' is not "
            'healthy."',
            "The model tensorrt_llm could not be loaded: its process died. Too little memory",
        ),
        ("x: error while loading shared libraries: libre2.so.9: cannot open", "needs libre2.so.9"),
        (
            "failed to start HTTP service: Unavailable - Socket '127.0.0.1:8000' already in use",
            "Another program uses a port",
        ),
        (
            "[warn] epoll_create: Too many open files\n"
            "failed to start Metrics service: Unavailable - Socket '127.0.0.1:8002' already in use",
            "limit of open files is too small",
        ),
        (
            "E11 m.cc:642] \"failed to load 'preprocessing' version 1: Internal: Unable to initialize shared "
            "memory key 'la177-4a50' to requested size (1048576 bytes). Error: No space left on device\"",
            "/dev/shm has too little space",
        ),
        ("something else", "something else"),
    ],
)
def test_a_log_becomes_a_sentence(tmp_path, line, sentence):
    log = tmp_path / "server.log"
    log.write_text(f"I1121 starting\n{line}\nI1121 ending\n")

    assert sentence in explain_failure(log)


def test_a_folder_for_shared_memory_that_cannot_be_written_is_not_called_full(tmp_path, monkeypatch):
    monkeypatch.setattr(failure, "SHM", tmp_path / "of-another-user")
    log = tmp_path / "server.log"
    log.write_text("Internal: Unable to initialize shared memory key 'la177-4a50' to requested size (1048576 bytes).\n")

    assert "This user cannot write to" in explain_failure(log)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("failed to start HTTP service: Unavailable - Socket '127.0.0.1:1' already in use", "took a port"),
        ("The gateway cannot listen on 127.0.0.1: [Errno 98] Address already in use.", "took a port"),
        ("  what():  boost::interprocess::lock_exception", "a lock of Triton's Python backend"),
        ("lookahead: the server ended by itself (it did nothing for 60 s before it was ready)", "for each other"),
        ("socketpair: Too many open files\nfailed to start Metrics service: Socket '127.0.0.1:2' already in use", None),
        ("failed to load 'lookahead_bls' version 1: Internal: ConfigError: There is no file.", None),
        ("", None),
    ],
)
def test_a_start_is_worth_repeating_where_nothing_of_ours_was_wrong(
    line: str, expected: str | None, tmp_path: Path
) -> None:
    logs = [tmp_path / "server.log", tmp_path / "gateway.log"]
    logs[0].write_text("I1 some line\n")
    logs[1].write_text(f"{line}\n")
    found = transient_failure(logs)
    assert found is None if expected is None else expected in str(found)
