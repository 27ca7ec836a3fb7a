"""The command perplexity: its table, its files, and no progress bars of other packages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command_line import exit_code


def test_an_engine_is_built_and_scored_without_bars_of_other_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOOKAHEAD_ENGINES", str(tmp_path / "engines"))
    words = [f"--set={value}" for value in ("backend=torch", "device=cpu")]
    scores = tmp_path / "scores.json"
    assert (
        exit_code("research", "perplexity", "--model=tiny-random-llama", *words, "--limit=1", f"--json={scores}") == 0
    )
    printed = capsys.readouterr()
    assert "tiny-random-llama" in printed.out
    assert len(json.loads(scores.read_text())["texts"]) == 1
    assert "Loading weights" not in printed.err
    assert "it/s" not in printed.err
    assert "not sharded" not in printed.err
