"""Commands start without heavy imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

HEAVY_IMPORTS = """
import contextlib, io, sys
from pipeline.cli import main

def run(heavy, *commands):
    for words in commands:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            main(words.split())
    print(sorted(heavy & sys.modules.keys()))

heavy = {"torch", "transformers", "numba", "matplotlib"}
run(heavy | {"numpy", "tritonclient", "httpx"}, "--help", "models --json", "profiles", "stop")
run(heavy | {"numpy", "tritonclient"}, "status")
run(heavy, "generate x --url localhost:1", "chat --url localhost:1", "batch none --out out", "report none")
from pipeline.triton_models import text_codec  # of a server's processes that tokenize
run(heavy)
"""


def test_commands_that_run_no_model_import_nothing_heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOKAHEAD_ENGINES", str(tmp_path / "engines"))
    monkeypatch.setenv("LOOKAHEAD_CACHE", str(tmp_path / "cache"))
    done = subprocess.run([sys.executable, "-c", HEAVY_IMPORTS], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout.split() == ["[]"] * 4, done.stderr
