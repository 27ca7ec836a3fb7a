"""verify, bench and load through a real tritonserver with a tiny random model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.bench.report.results import load_results
from pipeline.config.folders import folders
from pipeline.errors import ServerError
from pipeline.server.run_folders import run_dir
from pipeline.server.state import find_server
from tests.integration.command import MODEL, lookahead
from tests.patience import PATIENCE_S
from tests.servers import FREE_PORTS

pytestmark = [pytest.mark.slow, pytest.mark.triton]
PORTS = [word for setting in FREE_PORTS for word in ("--set", setting)]


@pytest.fixture(scope="module", autouse=True)
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOKAHEAD_ENGINES", str(tmp_path_factory.mktemp("engines")))
        lookahead("serve", *MODEL, *PORTS, "--background")
        try:
            state = find_server(run_dir(folders()))
            assert state is not None
            yield state.grpc_url
        finally:
            lookahead("stop")


def test_verify_finds_the_running_server_and_proves_text_and_tokens() -> None:
    arguments = [*MODEL, *PORTS, "--strategies", "trie,hybrid", "--max-new-tokens", 16, "--json"]
    result = lookahead("verify", *arguments)
    assert result.exit_code == 0, result.output
    comparisons = json.loads(result.stdout)["comparisons"]
    assert {(c["where"], c["strategy"]) for c in comparisons} >= {
        (where, strategy) for where in ("server", "server batch") for strategy in ("none", "trie", "hybrid")
    }
    assert {c["verdict"] for c in comparisons} == {"identical"}


def test_verify_asks_the_server_before_it_compares_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pipeline.bench.verify.verify.verify_in_process", lambda *arguments: pytest.fail("compared already")
    )
    with pytest.raises(ServerError, match=r"No server listens on 127\.0\.0\.1:1 "):
        lookahead("verify", *MODEL, *PORTS, "--url", "127.0.0.1:1")


def test_bench_through_the_server_counts_as_in_process(url: str, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"id": 1, "task": "t", "turns": ["abc abc abc", "and then?"]}\n')
    arguments = [*MODEL, *PORTS, "--data", data, "--strategies", "trie", "--turns", "all", "--max-new-tokens", 16]
    through, direct = tmp_path / "through.json", tmp_path / "direct.json"
    assert lookahead("bench", *arguments, "--url", url, "--json", through).exit_code == 0
    assert lookahead("bench", *arguments, "--json", direct).exit_code == 0
    served, in_process = load_results(through).requests, load_results(direct).requests
    assert [record.output_ids for record in served] == [record.output_ids for record in in_process]
    assert [record.prompt_ids for record in served] == [record.prompt_ids for record in in_process]
    assert all(record.identical and sum(record.acceptance_lengths) == len(record.output_ids) for record in served)


def test_load_counts_requests_and_no_errors() -> None:
    arguments = ["--concurrency", 6, "--duration", PATIENCE_S, "--max-requests", 18, "--max-new-tokens", 8]
    result = lookahead("load", *arguments, "--strategies", "none,trie,hybrid", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["requests"], found["errors"]) == (18, 0)
    assert found["ttft_ms"]["p50"] <= found["latency_ms"]["max"]
