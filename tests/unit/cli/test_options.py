"""Options that take lists of numbers, or input files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli.options import numbers
from pipeline.errors import UserError
from tests.patience import PATIENCE_S


def test_numbers_may_be_written_with_an_exponent():
    assert numbers("--sizes", "1,20, 1e5,2.5e6", 10**8) == [1, 20, 100_000, 2_500_000]


@pytest.mark.parametrize(
    "text", ["0", "-1", "1.5", "2.0", "1.55e1", "101", "1e3", "1e999", "9" * 5000, "1_0", "nan", "inf", "1,x"]
)
def test_what_is_no_whole_number_in_range_is_refused(text: str):
    with pytest.raises(UserError, match="--n takes numbers from 1 to 100, separated by commas; found"):
        numbers("--n", text, 100)


@pytest.mark.parametrize("text", ["", " , "])
def test_a_list_that_names_nothing_is_refused(text: str):
    with pytest.raises(UserError, match="--n is empty"):
        numbers("--n", text, 100)


@pytest.mark.parametrize(
    "command", ["report -", "batch - --out out", "load --data - --url localhost:1", "trie build - --out out"]
)
def test_a_dash_is_standard_input(command: str, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", *command.split()],
        cwd=tmp_path,
        input=b"\xff",
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: /dev/stdin cannot be read")
