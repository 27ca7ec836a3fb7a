"""All checks of the engine for a GPU, on the CPU with a tiny shape."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.bench.validation import engine_checks
from pipeline.bench.validation.engine_checks import CheckOptions, run_checks
from pipeline.bench.validation.validation_report import write_engine_report
from pipeline.config.folders import Folders
from pipeline.engine.torch import engine
from pipeline.engine.torch.lean.tables import norm_table


def test_all_checks_pass_on_a_cpu_and_the_report_holds_what_they_found(where: Folders, tmp_path: Path) -> None:
    options = CheckOptions("cpu", "tiny-random-llama", ("tiny",), num_prompts=1, max_new_tokens=16)
    counts: list[int] = []

    def on_result(results: list[dict[str, Any]]) -> None:
        counts.append(len(results))
        write_engine_report(tmp_path, asdict(options), results)

    results = {result["name"]: result for result in run_checks(options, where, lambda text: None, on_result)}

    assert counts == [1, 2, 3, 4, 5]
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
    assert json.loads((tmp_path / "engine.json").read_text())["checks"][4]["name"] == "lookahead"
    text = (tmp_path / "engine.md").read_text()
    assert "| batch_size | num_tokens | ms | over_floor | over_least |" in text
    assert text.count("| passed |") == 5


def test_a_check_that_fails_is_recorded_and_the_next_one_runs(where: Folders) -> None:
    options = CheckOptions("cpu", "no-such-model", (), num_prompts=1, max_new_tokens=4)
    _, drafts, lookahead = run_checks(options, where, lambda text: None, lambda results: None)[1:]
    assert not drafts["passed"]
    assert not lookahead["passed"]
    assert "There is no model 'no-such-model'" in drafts["error"]


def test_wrong_weights_fail_although_the_engine_agrees_with_itself(where: Folders, monkeypatch: Any) -> None:
    opened = engine_checks._open_model

    def damaged(*args: Any) -> Any:
        found = opened(*args)
        norms = found.engine._tensors["input_norm"].copy()
        found.engine._tensors["input_norm"] = np.ascontiguousarray(norms[:, ::-1]) * 3
        found.engine._norms = norm_table(found.engine._tensors, len(norms))
        return found

    monkeypatch.setattr(engine_checks, "_open_model", damaged)
    options = CheckOptions("cpu", "tiny-random-llama", (), num_prompts=1, max_new_tokens=16)
    found = run_checks(options, where, lambda text: None, lambda results: None)
    passed = {each["name"]: each["passed"] for each in found}
    assert passed == {"exactness": True, "reference": False, "drafts": True, "lookahead": True}
    assert "The engine has other weights, or computes another model." in found[1]["error"]


def exactness_of(where: Folders) -> dict[str, Any]:
    """Result of the first check, without the shapes of the others."""
    options = CheckOptions("cpu", "no-such-model", (), num_prompts=1, max_new_tokens=4)
    return run_checks(options, where, lambda text: None, lambda results: None)[0]


def test_a_tree_without_its_mask_fails_the_first_check_in_every_type(where: Folders, monkeypatch: Any) -> None:
    masked = engine.segment_mask

    def causal(segment: Any) -> Any:
        mask = masked(segment)
        return np.tri(*mask.shape, k=segment.cached, dtype=np.bool_)

    monkeypatch.setattr(engine, "segment_mask", causal)
    result = exactness_of(where)
    assert not result["passed"]
    for dtype in ("float32", "bfloat16"):
        assert f"logits in {dtype} differ by 0.0" in result["error"]


def test_logits_that_are_no_numbers_fail_the_first_check(where: Folders, monkeypatch: Any) -> None:
    score_mask = engine.TorchEngine._score_mask
    monkeypatch.setattr(engine.TorchEngine, "_score_mask", lambda *args: score_mask(*args) * float("nan"))
    result = exactness_of(where)
    assert (result["passed"], result["error"]) == (False, "RuntimeError: the engine's logits are not finite")


@pytest.mark.parametrize("verdict", ["near_tie", "different"])
def test_a_different_output_fails_the_check_with_a_sentence(where: Folders, monkeypatch: Any, verdict: str) -> None:
    compare = engine_checks.verify_in_process

    def differing(*args: Any) -> Any:
        (first, *others), references = compare(*args)
        return [replace(first, verdict=verdict), *others], references

    monkeypatch.setattr(engine_checks, "verify_in_process", differing)
    result = exactness_of(where)
    assert result["passed"] is (verdict != "different")
    assert ("outputs differ; " in result["error"]) is (verdict == "different")
