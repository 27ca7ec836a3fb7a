"""The running server with which `lookahead verify` compares, and the rounding that it forgives."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.cli.demo import report_differences
from pipeline.decoding.planning.balance import DraftBalance
from pipeline.engine.scheduler import Scheduler
from pipeline.engine.submission import GenerationResult, Submission
from pipeline.errors import ServerError
from pipeline.server import state as server_state
from tests.command_line import exit_code
from tests.server_states import state_of


@pytest.fixture
def words_of_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options of a model and a profile that a server seems to serve, from a repository below the folder of engines."""
    monkeypatch.setenv("LOOKAHEAD_ENGINES", str(tmp_path))
    model = "tiny-random-llama"
    words = ["--model", model, "--set", "backend=torch", "--set", "device=cpu", "--set", "drafting.planner=fixed"]
    assert exit_code("repo", *words) == 0
    repository = str(tmp_path / model / "latency" / "repository")
    later = time.time() + 3600  # the clock has jumped
    server = state_of(model=model, profile="latency", repository=repository, started=later)
    monkeypatch.setattr(server_state, "find_server", lambda folder: server)
    return words


def test_a_server_with_an_older_build_is_not_compared_with(
    words_of_server: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "tiny-random-llama/latency/repository/lookahead_bls/config.pbtxt"
    manifest = json.loads((tmp_path / "tiny-random-llama/latency/manifest.json").read_text())
    config.write_text(config.read_text().replace(manifest["fingerprint_digest"], "of an older build"))

    assert exit_code("verify", "--quick", *words_of_server) == 2
    assert "The running server has an older build" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ("engine", "--force"),
        ("repo", "--out={folder}/repository"),
        ("verify", "--quick"),
        ("verify", "--no-server"),
        ("bench",),
        ("bench", "--url=127.0.0.1:2"),
        ("tune",),
        ("demo",),
        ("research", "perplexity"),
        ("research", "experiments", "--outputs={folder}/outputs.jsonl", "--out={folder}/results"),
    ],
)
def test_the_engine_of_a_server_with_other_settings_is_not_replaced(
    command: Sequence[str],
    words_of_server: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("pipeline.bench.contenders.remote.check_address", lambda *arguments: None)
    manifest = tmp_path / "tiny-random-llama/latency/manifest.json"
    before = manifest.read_bytes()
    (tmp_path / "outputs.jsonl").write_text('{"prompt_ids": [1], "output_ids": [2]}\n')
    words = [word.format(folder=tmp_path) for word in command]

    assert exit_code(*words, *words_of_server, "--set", "engine.max_seq_len=512") == 2
    assert "other settings: engine.max_seq_len 4096 instead of 512. Use the --set" in capsys.readouterr().err
    assert manifest.read_bytes() == before


def test_a_server_of_another_version_is_named(
    words_of_server: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "tiny-random-llama/latency/repository/resolved.yaml"
    settings.write_text(settings.read_text().replace("max_seq_len", "longest_sequence"))
    assert exit_code("engine", *words_of_server) == 2
    assert "was started by another version of this program" in capsys.readouterr().err


@pytest.mark.parametrize(("dtype", "expected"), [("bfloat16", 0.0), ("float16", 2.0**-10)])
def test_rounding_explains_no_difference_in_the_lean_pass(
    dtype: str, expected: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOKAHEAD_ENGINES", str(tmp_path))
    words = [f"--set={value}" for value in ("backend=torch", "device=cpu", "drafting.planner=fixed")]
    words += ["--model=tiny-random-llama", f"--set=model.dtype={dtype}"]
    found: list[float] = []

    def verified(engine: object, epsilon: float, *arguments: object) -> tuple[list[object], dict[str, object]]:
        found.append(epsilon)
        return [], {}

    monkeypatch.setattr("pipeline.cli.verify_engine.verify_in_process", verified)
    for command in (["engine"], ["verify", "--quick", "--no-server"]):
        assert exit_code(*command, *words) == 0
    assert found == [expected]


@pytest.mark.parametrize(("dtype", "is_fault"), [("float32", True), ("bfloat16", False)])
def test_outputs_of_the_demo_may_differ_only_by_rounding(dtype: str, is_fault: bool, tmp_path: Path) -> None:
    artifact: Any = SimpleNamespace(engine_dir=tmp_path, resolved=SimpleNamespace(dtype=dtype))  # not of the lean pass
    with pytest.raises(ServerError, match="The outputs differ; run") if is_fault else nullcontext():
        report_differences(artifact)


def test_drafts_are_verified_also_where_they_do_not_pay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass of a tiny model takes less time than drafting."""
    monkeypatch.setenv("LOOKAHEAD_ENGINES", str(tmp_path))
    monkeypatch.setattr(DraftBalance, "pays", False)
    num_drafts: Counter[str] = Counter()
    run = Scheduler.run

    def counting(self: Scheduler, submissions: Sequence[Submission]) -> list[GenerationResult]:
        results = run(self, submissions)
        for submission, result in zip(submissions, results, strict=True):
            num_drafts[submission.strategy] += result.statistics.num_draft_tokens
        return results

    monkeypatch.setattr(Scheduler, "run", counting)
    words = ["--set=backend=torch", "--set=device=cpu", "--model=tiny-random-llama", "--limit=1"]
    assert exit_code("verify", "--no-server", "--strategies=trie", "--max-new-tokens=16", *words) == 0
    assert num_drafts["trie"] > 0
    assert num_drafts["none"] == 0


@pytest.mark.parametrize(
    ("name", "text", "is_matched", "note"),
    [
        ("digits.regex", "[0-9]{1,3}", True, ", 0 were cut"),
        ("letter.json", '{"type": "string", "pattern": "^\\\\p{Lu}$"}', False, ", and are not checked again ("),
        ("switch.json", '{"type": "boolean"}', True, ", and 2 of them match the schema"),
        ("switch.json", '{"type": "boolean"}', False, ", and 0 of them match the schema"),
    ],
)
def test_with_json_stdout_holds_the_results_and_nothing_else(
    name: str,
    text: str,
    is_matched: bool,
    note: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The sentence about the grammar was printed before the JSON, and an output that does not match in its place."""
    monkeypatch.setenv("LOOKAHEAD_ENGINES", str(tmp_path))
    monkeypatch.setattr("pipeline.cli.verify_engine.matches", lambda schema, output: is_matched)
    (tmp_path / name).write_text(text)
    words = [f"--set={value}" for value in ("backend=torch", "device=cpu", "drafting.planner=fixed")]
    words += ["--model=tiny-random-llama", "--limit=1", "--max-new-tokens=8", "--strategies=trie", "--json"]
    code = exit_code("verify", "--grammar", str(tmp_path / name), *words)
    printed = capsys.readouterr()
    results = json.loads(printed.out)
    assert (results["lossless"], len(results["comparisons"])) == (True, 6)
    assert (code, len(results["mismatches"])) == ((1, 2) if " 0 of them" in note else (0, 0))
    assert f"grammar: 2 outputs finished{note}" in printed.err
