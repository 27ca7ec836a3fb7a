"""`lookahead trie`: build, inspect, prune and merge snapshots, and messages of errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pipeline.cli.trie import trie
from pipeline.decoding.trie.snapshot import load_trie
from pipeline.errors import UserError
from tests.command_line import output_of


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    lines = [{"prompt_ids": [9, 9], "output_ids": [1, 2, 3, 1, 2]}, {"token_ids": [1, 2, 4]}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    return path


def count(path: Path, *tokens: int, namespace: str = "") -> int:
    return load_trie(path).count(np.asarray(tokens, np.int32), namespace)


def test_build_takes_the_results_of_a_bench(tmp_path: Path):
    requests = [
        {"strategy": "trie", "prompt_ids": [9], "output_ids": [7, 8]},
        {"strategy": "none", "prompt_ids": [9], "output_ids": [1, 2, 3]},
        {"strategy": "none", "prompt_ids": [9], "output_ids": [1, 2, 3], "repeat": 1},
    ]
    results = tmp_path / "out.json"
    results.write_text(json.dumps({"requests": requests}))
    output_of(trie, "build", results, "-o", tmp_path / "a.trie")
    assert [count(tmp_path / "a.trie", *tokens) for tokens in ([1, 2, 3], [7, 8], [9])] == [1, 0, 0]
    results.write_text('{"other": 1}')
    with pytest.raises(UserError, match=r"out\.json holds text; name the folder of a tokenizer"):
        output_of(trie, "build", results, "-o", tmp_path / "b.trie")


def test_build_inspect_prune_and_merge(rows: Path, tmp_path: Path):
    one, two, both = (tmp_path / name for name in ("one.trie", "two.trie", "both.trie"))
    output_of(trie, "build", rows, "-o", one, "--max-mib", 1)
    output_of(trie, "build", rows, "-o", two, "--max-mib", 1, "--prompts", "--namespace", "tenant")
    assert count(one, 1, 2) == 3
    assert count(one, 9) == 0
    assert count(two, 9, 1, namespace="tenant") == 1
    output_of(trie, "merge", one, two, one, "-o", both, "--max-mib", 1)
    assert count(both, 1, 2) == 3
    assert count(both, 1, 2, namespace="tenant") == 3
    output_of(trie, "prune", both)
    assert count(both, 1, 2) == 1
    assert count(both, 9, 1, namespace="tenant") == 0
    seen = json.loads(output_of(trie, "inspect", both, "--json"))
    assert seen["namespaces"] == ["", "tenant"]
    assert seen["tokens_held"] == 8 + 10


def test_snapshots_are_merged_from_urls_to_a_url(rows: Path, tmp_path: Path):
    for name, namespace in (("one", ""), ("two", "tenant")):
        output_of(trie, "build", rows, "-o", f"memory://{name}", "--max-mib", 1, "--namespace", namespace)
    output_of(trie, "merge", "memory://one", "memory://two", "-o", "memory://both", "--max-mib", 1)
    seen = json.loads(output_of(trie, "inspect", "memory://both", "--json"))
    assert seen["file"] == "memory://both"
    assert seen["namespaces"] == ["", "tenant"]


@pytest.mark.parametrize("url", ["memory://nowhere", "nosuch://bucket/key"])
def test_a_url_that_cannot_be_read_is_said(url: str):
    with pytest.raises(UserError, match=f"The trie {url} cannot be read: "):
        output_of(trie, "inspect", url)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1 is not JSON"),
        ("[" * 100_000, "line 1 is nested too deeply"),
        ('{"output_ids": [1, -1]}', "output_ids must be a list of token ids"),
        ('{"prompt": "x"}', "token_ids, output_ids or text"),
        ('{"text": "x"}', "--tokenizer"),
        ("", "No tokens"),
    ],
)
def test_what_is_wrong_with_a_row_is_said(tmp_path: Path, line: str, said: str):
    path = tmp_path / "rows.jsonl"
    path.write_text(line)
    with pytest.raises(UserError, match=said):
        output_of(trie, "build", path, "-o", tmp_path / "out.trie")
    assert not (tmp_path / "out.trie").exists()


def test_a_limit_too_small_for_the_branch_length_is_refused(rows: Path, tmp_path: Path):
    with pytest.raises(UserError, match="needs at least"):
        output_of(trie, "build", rows, "-o", tmp_path / "a", "--max-mib", 0.1, "--branch-length", 64)


@pytest.mark.parametrize("mib", ["inf", "nan", "1e9", "0"])
def test_a_limit_that_no_machine_has_is_refused(rows: Path, tmp_path: Path, mib: str):
    result = CliRunner().invoke(trie, ["build", str(rows), "-o", str(tmp_path / "a"), "--max-mib", mib])
    assert result.exit_code == 2
    assert "--max-mib" in result.output


def test_memory_that_this_machine_does_not_have_is_the_users(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(*arguments: object) -> None:
        raise MemoryError("Unable to allocate")

    monkeypatch.setattr("pipeline.decoding.trie.text_trie.new_arrays", fail)
    with pytest.raises(UserError, match="does not have that much memory"):
        output_of(trie, "build", rows, "-o", tmp_path / "a", "--max-mib", 60000)


def test_build_does_not_overwrite_what_it_reads(rows: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(rows)
    before = rows.read_text()
    with pytest.raises(UserError, match="link is the input"):
        output_of(trie, "build", rows, "-o", tmp_path / "link")
    assert rows.read_text() == before
