"""All checks of the engine for a GPU, on the CPU with a tiny shape."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.bench.validation.engine_checks import CheckOptions, run_checks
from pipeline.bench.validation.validation_report import write_engine_report
from pipeline.config.places import Places


def test_all_checks_pass_on_a_cpu_and_the_report_holds_what_they_found(where: Places, tmp_path: Path) -> None:
    options = CheckOptions("cpu", "tiny-random-llama", ("tiny",), num_prompts=1, max_new_tokens=16)
    counts: list[int] = []

    def on_result(results: list[dict[str, Any]]) -> None:
        counts.append(len(results))
        write_engine_report(tmp_path, asdict(options), results)

    results = {result["name"]: result for result in run_checks(options, where, lambda text: None, on_result)}

    assert counts == [1, 2, 3, 4]
    assert [name for name, result in results.items() if not result["passed"]] == []
    assert 0 <= results["exactness"]["largest_logit_gap"]["float32"] < 1e-3
    points = results["curve tiny"]["points"]
    assert {(point["batch_size"], point["num_tokens"]) for point in points} >= {(1, 1), (1, 256), (16, 1024)}
    assert all(point["over_least"] >= 1 for point in points)
    strategies = [speed["strategy"] for speed in results["drafts"]["speeds"]]
    assert strategies[0] == "none"
    assert "hybrid" in strategies
    sizes = results["lookahead"]["table"]
    assert len(sizes) == 8
    assert all(row["acceptance_length"] >= 1 and row["speedup at tiny"] > 0 for row in sizes)
    assert json.loads((tmp_path / "engine.json").read_text())["checks"][3]["name"] == "lookahead"
    text = (tmp_path / "engine.md").read_text()
    assert "| batch_size | num_tokens | ms | over_floor | over_least |" in text
    assert text.count("| passed |") == 4


def test_a_check_that_fails_is_recorded_and_the_next_one_runs(where: Places) -> None:
    options = CheckOptions("cpu", "no-such-model", (), num_prompts=1, max_new_tokens=4)
    drafts, lookahead = run_checks(options, where, lambda text: None, lambda results: None)[1:]
    assert not drafts["passed"]
    assert not lookahead["passed"]
    assert "There is no model 'no-such-model'" in drafts["error"]
