"""The commands of replay and experiments: rows, pictures, and errors of the user."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lookahead_research.known_outputs import load_replay_rows, require_room, require_vocabulary

from pipeline.decoding import warm_up
from pipeline.decoding.drafting.drafter import Drafter
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import DraftTree, IntArray
from pipeline.errors import UserError
from tests.command_line import exit_code


def outputs(folder: Path) -> Path:
    path = folder / "outputs.jsonl"
    row = {"task": "t", "prompt_ids": [5, 6, 7, 8] * 3, "output_ids": [5, 6, 7, 8] * 3}
    path.write_text("\n".join(json.dumps(row) for _ in range(2)))
    return path


def run(command: str, folder: Path, *words: str | Path) -> int:
    """The exit code of a command on these outputs."""
    return exit_code("research", command, "--outputs", str(outputs(folder)), *map(str, words))


def test_replay_writes_a_row_per_source_budget_regime_and_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "rows.json"
    words = ("--source", "pool,trie+pool", "--budget", "4,8", "--regime", "cold,prewarmed", "--json", target)
    assert run("replay", tmp_path, *words) == 0
    rows = json.loads(target.read_text())
    assert [(row["source"], row["budget"], row["regime"], row["task"]) for row in rows] == [
        (source, budget, regime, task)
        for source in ("pool", "trie+pool")
        for budget in (4, 8)
        for regime in ("cold", "prewarmed")
        for task in ("t", "all")
    ]
    assert all(row["tokens"] == 24 for row in rows)
    assert "trie+pool" in capsys.readouterr().out


def test_replay_compiles_before_it_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    propose = Drafter.propose

    def recorded(self: Drafter, request_id: str, context: IntArray, budget: DraftBudget) -> DraftTree:
        events.append("propose")
        return propose(self, request_id, context, budget)

    monkeypatch.setattr(warm_up, "warm_up", lambda: events.append("warm-up"))
    monkeypatch.setattr(Drafter, "propose", recorded)
    assert run("replay", tmp_path, "--source", "prompt") == 0
    assert events[0] == "warm-up"
    assert set(events[1:]) == {"propose"}


@pytest.mark.parametrize(("source", "is_noted"), [("hybrid", True), ("trie,trie+recycling", True), ("trie", False)])
def test_replay_notes_that_a_source_has_no_rows_to_learn_from(source, is_noted, tmp_path, capsys):
    assert run("replay", tmp_path, "--source", source, "--budget", "4", "--regime", "cold") == 0
    assert ("without --rows" in capsys.readouterr().err) is is_noted


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (["--budget", "many"], "--budget takes numbers from 1 to 2048, separated by commas; found 'many'"),
        (["--rows", "nothing.npz", "--source", "hybrid"], "nothing.npz cannot be read: No such file or directory."),
        (
            ["--rows", __file__, "--source", "pool"],
            "test_replay_command.py is not a file of `lookahead research record`",
        ),
        (["--rows", "nothing.npz"], "--rows has no effect on --source trie; it is for hybrid"),
        (["--json", f"{__file__}/out.json"], "test_replay_command.py is not a folder."),
        (["--source", "trie,trie"], "--source lists an item twice"),
        (["--regime", "hot"], "--regime takes cold, warm, prewarmed; found 'hot'"),
        (["--source", "oracle"], "source is 'oracle'"),
        (["--source", "trie+trie"], "source 'trie+trie' names one source twice"),
        (["--source", "trie+hybrid"], "source is 'trie+hybrid'; it must be hybrid, or one or more (joined by +)"),
    ],
)
def test_wrong_words_are_user_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], complaint: str
) -> None:
    assert run("replay", tmp_path, *more) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            ["research", "experiments", "--outputs", "{outputs}", "--set", "device=cpu"],
            "--ranks and --set need a model",
        ),
        (
            ["research", "bench-trie", "{outputs}", "--tokenizer", "{folder}"],
            "must be a folder with a tokenizer, such as tokenizer.json",
        ),
        (["dev", "pass-times", "--tokens", "0"], "--tokens takes numbers from 1 to"),
    ],
)
def test_a_mistake_ends_the_command_before_it_builds_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    places = {"outputs": str(outputs(tmp_path)), "folder": str(tmp_path)}
    assert exit_code(*(word.format_map(places) for word in words)) == 2
    assert complaint in capsys.readouterr().err


def test_a_token_outside_the_vocabulary_names_its_output(tmp_path: Path) -> None:
    rows = load_replay_rows(outputs(tmp_path))
    with pytest.raises(UserError, match=r"output 1 \(prompt and output\) holds token \d+ at position 0"):
        require_vocabulary(rows, 0)


def test_an_output_that_is_longer_than_the_engine_is_named_before_it_is_recorded(tmp_path: Path) -> None:
    rows = load_replay_rows(outputs(tmp_path))
    needed = max(len(row.text) for row in rows) + 8
    require_room(rows, 8, needed)
    with pytest.raises(UserError, match=rf"needs {needed} tokens.*Use --set engine.max_seq_len={needed}"):
        require_room(rows, 8, needed - 1)


@pytest.mark.parametrize("command", ["replay", "bench-trie"])
def test_the_output_does_not_replace_the_input(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = outputs(tmp_path)
    before = path.read_text()
    files = ["--outputs", str(path)] if command == "replay" else [str(path)]
    assert exit_code("research", command, *files, "--json", str(path)) == 2
    assert "is the input, and would be overwritten" in capsys.readouterr().err
    assert path.read_text() == before


def test_experiments_leave_json_and_pictures(tmp_path: Path) -> None:
    target = tmp_path / "results"
    assert run("experiments", tmp_path, "--out", target, "--limit", "1") == 0
    assert {path.name for path in target.iterdir()} == {
        f"{name}.{kind}" for name in ("decoding_length", "branch_length", "capacity") for kind in ("json", "png")
    }


def test_experiments_refuse_sizes_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("experiments", tmp_path, "--sizes", "5,5") == 2
    assert "--sizes holds '5,5'" in capsys.readouterr().err


def test_experiments_refuse_an_unknown_model_before_they_replay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "results"
    assert run("experiments", tmp_path, "--out", target, "--model", "nope") == 2
    assert "nope" in capsys.readouterr().err
    assert not list(target.iterdir())


def test_experiments_refuse_ranks_that_no_engine_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--out", tmp_path, "--model", "nope")
    assert run("experiments", tmp_path, *words, "--ranks", "65") == 2
    assert "--ranks takes numbers from 1 to 64" in capsys.readouterr().err
    assert run("experiments", tmp_path, *words, "--ranks", "2", "--rank-size", "3,3") == 2
    assert "--rank-size holds '3,3'" in capsys.readouterr().err
