"""The command that measures the trie: sizes, limits, and peers."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import typer
from lookahead_research.cli.bench_trie import bench_trie

from pipeline.errors import UserError
from tests.command_line import output_of

APP = typer.Typer()
APP.command()(bench_trie)
run = partial(output_of, APP)


def test_a_size_that_cannot_be_measured_is_refused():
    with pytest.raises(UserError, match=r"--sizes takes numbers from 1 to 100000000.*found '1e9'"):
        run("--sizes", "1e9")


def test_bench_trie_measures_a_synthetic_stream_and_rows(tmp_path: Path):
    out = tmp_path / "made" / "figures.json"
    shown = run("--sizes", "9e3,2000", "--queries", 20, "--json", out, "--max-mib", 0.25)
    assert "B/token" in shown
    first, second = json.loads(out.read_text())
    assert 2000 <= first["num_tokens"] < second["num_tokens"]
    assert second["allocated_bytes"] <= 1 << 18
    assert second["num_held"] < second["num_tokens"]
    assert 0 < second["mean_draft_nodes"] <= 64
    assert {row["source"] for row in (first, second)} == {"trie"}
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"token_ids": [1, 2, 4]}\n')
    with pytest.raises(UserError, match="fewer than 100"):
        run(rows, "--sizes", "100")
    long = "".join(json.dumps({"token_ids": list(range(number, number + 20))}) + "\n" for number in range(9))
    rows.write_text('{"token_ids": [1, 2]}\n' + long)  # the first row would be held out
    assert "B/token" in run(rows, "--sizes", "100", "--queries", 5)
    with pytest.raises(UserError, match="cannot be written: it is a folder"):
        run("--sizes", "2000", "--json", tmp_path)


def test_bench_trie_asks_peers_the_same(tmp_path: Path):
    out = tmp_path / "figures.json"
    shown = run("--sizes", "3000", "--queries", 100, "--nodes", 10, "--peers", "prompt-lookup", "--json", out)
    assert "prompt-lookup" in shown
    ours, theirs = json.loads(out.read_text())
    assert (ours["source"], theirs["source"]) == ("trie", "prompt-lookup")
    assert ours["num_tokens"] == theirs["num_tokens"]
    assert 0 < theirs["mean_draft_nodes"] <= 10
    assert ours["mean_accepted"] > theirs["mean_accepted"] >= 0
    with pytest.raises(UserError, match="--peers takes prompt-lookup; found 'magic'"):
        run("--peers", "magic")
