"""bench, verify and report on a tiny random model, from the command line to the files that they write."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.bench import tune
from pipeline.bench.report.results import load_results
from pipeline.errors import UserError
from pipeline.tuning import planned_engine
from pipeline.tuning.cost_curve import CostGrid
from tests.integration.command import MODEL, lookahead

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOKAHEAD_ENGINES", str(tmp_path_factory.mktemp("engines")))
        yield


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    rows: list[dict[str, Any]] = [
        {"id": 1, "task": "copy", "prompt": "abc abc abc abc"},
        {"id": 2, "task": "talk", "turns": ["Grüße, 世界 🎉", "and then?"]},
    ]
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    return path


def test_bench_measures_all_strategies_and_baselines_with_identical_outputs(data: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "out.json", tmp_path / "out.html"
    result = lookahead(
        "bench", *MODEL, "--data", data, "--max-new-tokens", 12, "--turns", "all", "--repeats", 2,
        "--baselines", "hf,hf-prompt-lookup", "--concurrency", "1,2", "--json", out,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    results = load_results(out)
    strategies = ["none", "lookahead", "trie", "hybrid", "hf", "hf-prompt-lookup"]
    assert [record.strategy for record in results.requests] == strategies * 6
    assert [record.id for record in results.requests[::6]] == ["1", "2", "2#2"] * 2
    for record in results.requests:
        assert record.identical, record
        assert sum(record.acceptance_lengths) == len(record.output_ids)
        assert len(record.acceptance_lengths) == record.steps
        assert 0 < record.ttft_s <= record.seconds
    assert {(row.task, row.strategy) for row in results.summary} == {
        (task, name) for task in ("copy", "talk", "overall") for name in strategies
    }
    assert all(row.num_identical == row.num_requests == 4 for row in results.concurrency)
    assert results.manifest["fingerprint"]
    assert results.manifest["resolved"]["model"]["name"] == "tiny-random-llama"
    assert lookahead("report", out, "--html", page).exit_code == 0
    assert page.read_text(encoding="utf-8").count("<svg ") == 3


def test_verify_passes_and_says_so(data: Path) -> None:
    result = lookahead(
        "verify", *MODEL, "--data", data, "--max-new-tokens", 12, "--strategies", "trie,hybrid", "--json"
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["lossless"] is True
    assert len(found["comparisons"]) == 2 * 2 * (2 + 3)
    assert {comparison["verdict"] for comparison in found["comparisons"]} == {"identical"}


def test_a_sampled_bench_is_identical_too(data: Path) -> None:
    result = lookahead(
        "bench", *MODEL, "--data", data, "--max-new-tokens", 12, "--strategies", "hybrid",
        "--temperature", 0.9, "--seed", 7,
    )  # fmt: skip
    assert "2 of 2 outputs are token for token those of none." in result.output


def test_without_data_the_prompts_that_come_with_the_program_are_measured() -> None:
    result = lookahead("bench", *MODEL, "--limit", 2, "--max-new-tokens", 4, "--strategies", "trie")
    assert "2 of 2 outputs are token for token those of none." in result.output


def test_the_cost_curve_is_stored_with_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.bench.bench.open_in_process", None)  # the engine is not loaded a second time
    result = lookahead("bench", *MODEL, "--cost-curve", "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    assert len(load_results(tmp_path / "out.json").cost_curve) > 20


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--data", "none.jsonl"], "no data file"),
        (["--data", "DATA", "--strategies", "tree"], "found 'tree'"),
        (["--data", "DATA", "--strategies", "trie,trie"], "twice"),
        (["--data", "DATA", "--concurrency", "0"], "numbers from 1 to 1024"),
        (["--data", "DATA", "--concurrency", "64"], "--set engine.max_batch_size=64"),
        (["--data", "DATA", "--baselines", "vllm"], "found 'vllm'"),
        (["--data", "DATA", "--baselines", "hf", "--temperature", "1"], "baselines are greedy"),
        (["--data", "DATA", "--url", "10.1.2.3:8001"], "--allow-remote"),
        (["--data", "DATA", "--url", "127.0.0.1:1"], "lookahead status"),
        (["--data", "DATA", "--url", "127.0.0.1"], "host:port"),
        (["--data", "DATA", "--json", "/proc/none/out.json"], "cannot be written"),
        (["--data", "DATA", "--set", "drafting.sources=[]", "--strategies", "trie"], "would be plain decoding"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(data: Path, arguments: list[str], what: str) -> None:
    with pytest.raises(UserError) as raised:
        lookahead("bench", *MODEL, *(str(data) if word == "DATA" else word for word in arguments))
    assert what in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("option", "known"), [("--warm", ("'cold'", "'warm'")), ("--turns", ("'first'", "'all'"))])
def test_an_unknown_word_is_refused_with_the_known_ones(option: str, known: tuple[str, ...]) -> None:
    result = lookahead("bench", *MODEL, option, "other")
    assert result.exit_code == 2
    assert all(word in result.output for word in known)  # a frame may break the line between them


def test_what_is_measured_in_process_cannot_be_measured_through_a_server(data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(UserError, match="leave out --url"):
        lookahead("bench", *MODEL, "--data", data, "--url", f"127.0.0.1:{server.getsockname()[1]}", "--cost-curve")


def test_tune_names_the_settings_and_reports_its_progress(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned_engine, "grid_for", lambda device, fine: CostGrid((1, 2), (1,), (16,), num_repeats=1))
    monkeypatch.setattr(tune, "BUDGETS", (4,))
    monkeypatch.setattr(tune, "LOOKAHEADS", ((1, 3, 2),))
    result = lookahead("tune", *MODEL, "--data", data, "--max-new-tokens", 8, "--limit", 1, "--json")

    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [row["strategy"] for row in found["summary"]] == ["none", "budget 4", "W,N,G 1,3,2"]
    assert [point["num_tokens"] for point in found["cost_curve"]] == [1, 2]
    assert found["max_draft_tokens"] in (None, 4)
    assert f"{planned_engine.MEASURING}\n" in result.stderr
