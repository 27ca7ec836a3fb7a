"""Options that take lists of numbers, or input and output files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from pipeline.cli.options import numbers
from pipeline.decoding.trie.snapshot import load_trie
from pipeline.errors import UserError
from tests.command_line import exit_code, redirected


def test_numbers_may_be_written_with_an_exponent():
    assert numbers("--sizes", "1,20, 1e5,2.5e6", 10**8) == [1, 20, 100_000, 2_500_000]


@pytest.mark.parametrize(
    "text", ["0", "-1", "1.5", "2.0", "1.55e1", "101", "1e3", "1e999", "9" * 5000, "1_0", "nan", "inf", "1,x"]
)
def test_what_is_no_whole_number_in_range_is_refused(text: str):
    with pytest.raises(UserError, match="--n takes numbers from 1 to 100, separated by commas; found"):
        numbers("--n", text, 100)


@pytest.mark.parametrize("text", ["1,1", "10,1e1", "1,01"])
def test_a_number_that_is_written_twice_is_refused(text: str):
    with pytest.raises(UserError, match="--n lists an item twice"):
        numbers("--n", text, 100)


@pytest.mark.parametrize("text", ["", " , "])
def test_a_list_that_names_nothing_is_refused(text: str):
    with pytest.raises(UserError, match="--n is empty"):
        numbers("--n", text, 100)


@pytest.mark.parametrize(
    "command", ["report -", "batch - --out out", "load --data - --url localhost:1", "trie build - --out out"]
)
def test_a_dash_is_standard_input(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    reader, writer = os.pipe()
    os.write(writer, b"\xff")
    os.close(writer)
    with redirected(0, reader):
        assert exit_code(*command.split()) == 2
    os.close(reader)
    assert capsys.readouterr().err.startswith("error: /dev/stdin cannot be read")


@pytest.mark.parametrize(("name", "as_json"), [("-", ()), ("/dev/stdout", ("--json",))])
def test_an_output_file_can_be_standard_output_which_then_holds_nothing_else(
    name: str,
    as_json: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"prompt_ids": [9, 9], "output_ids": [1, 2, 3, 1, 2]}\n')
    with Path("whole").open("ab") as whole:  # as `>>` of a shell does
        whole.write(b"before\n")
        whole.flush()
        with redirected(1, whole.fileno()):
            assert exit_code("trie", "build", "rows.jsonl", "--out", name, *as_json) == 0
    before, content = (tmp_path / "whole").read_bytes().split(b"\n", 1)
    assert before == b"before"
    (tmp_path / "a.trie").write_bytes(content)
    assert load_trie(tmp_path / "a.trie").count(np.asarray([1, 2, 3], np.int32)) == 1
    assert ("tokens_held" if as_json else "5 tokens of 1 rows") in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "rows.jsonl", "a.trie"}
