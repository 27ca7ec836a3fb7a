"""`lookahead validate-gpu` on the CPU: the same stages with the torch backend, for real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.config.folders import folders
from pipeline.server.state import find_server
from tests.patience import PATIENCE_S

# All stages together take a minute and a half, and more than ten minutes on a busy machine.
LIMIT_S = 5 * PATIENCE_S
pytestmark = [pytest.mark.triton, pytest.mark.slow, pytest.mark.timeout(LIMIT_S + PATIENCE_S)]


def test_every_stage_passes_on_a_cpu_with_the_torch_backend(tmp_path: Path) -> None:
    out = tmp_path / "validation"
    command = [sys.executable, "-m", "pipeline", "validate-gpu", "--backend", "torch", "-m", "tiny-random-llama"]
    command += ["--set", "device=cpu", "--limit", "1", "--max-new-tokens", "8", "--load-seconds", "1"]
    command += ["--out", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folders().home, env=os.environ, timeout=LIMIT_S)

    report = json.loads(done.stdout)
    failed = {stage["name"]: stage["tail"] for stage in report["stages"] if stage["outcome"] != "passed"}
    assert failed == {}, done.stderr
    assert done.returncode == 0
    assert report["passed"]
    assert [stage["name"] for stage in report["stages"]][-3:] == ["again", "status", "stop"]
    assert report == json.loads((out / "report.json").read_text())
    text = (out / "report.md").read_text()
    assert "| result | passed |" in text
    assert "## Bench" in text
    assert "lossless: yes" in (out / "06-verify.log").read_text()
    assert find_server(out / "engines" / ".run") is None
