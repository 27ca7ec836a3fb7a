"""Stages of a validation run with small commands: skipped, reported and unconditional stages."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pipeline.backends.tensorrt_llm.rules import check
from pipeline.bench.validation import validation
from pipeline.bench.validation.validation import (
    SERVER,
    StageResult,
    ValidationPlan,
    ValidationStage,
    has_passed,
    private_folders,
    run_stages,
    stages_of,
)
from pipeline.bench.validation.validation_report import report_of, write_report
from pipeline.config.folders import folders
from pipeline.config.resolution import resolve_config
from tests.command_line import exit_code
from tests.patience import PATIENCE_S
from tests.unit.server.fake_machine import fake_machine

PLAN = ValidationPlan(
    model="m",
    profile="latency",
    other_profile="throughput",
    backend="torch",
    overrides=("device=cpu",),
    first_only=("only=first",),
    strategies=("none", "trie"),
    num_prompts=6,
    max_new_tokens=64,
    load_seconds=5.0,
    stage_timeout_s=7200.0,
)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts a script in the place of our command: its first word is what it exits with, or how long it takes."""
    script = tmp_path / "script"
    script.write_text(
        # A shell starts within the time limit of a stage, however busy the machine.
        "#!/bin/sh\nshift 2\n"
        f'echo said "$@"\nprintf "%s " "$1" >> "{tmp_path / "ran"}"\n'
        'if [ "$1" = hang ]; then exec sleep 60; fi\nexit "$1"\n'
    )
    script.chmod(0o755)
    monkeypatch.setattr(validation.sys, "executable", str(script))
    return tmp_path


def run(
    folder: Path, *stages: ValidationStage, timeout_s: float = PATIENCE_S, address: str | None = "h:1"
) -> list[StageResult]:
    return run_stages(stages, folder / "out", dict(os.environ), lambda: address, timeout_s)


def test_a_failing_stage_takes_only_those_with_it_that_need_it(commands):
    results = run(
        commands,
        ValidationStage("a", "", ("0",)),
        ValidationStage("b", "", ("3", "words"), ("a",)),
        ValidationStage("c", "", ("0",), ("b",)),
        ValidationStage("d", "", ("0",), ("a",)),
        ValidationStage("e", "", ("0",), ("c",)),
    )
    assert [(r.name, r.outcome, r.exit_code) for r in results] == [
        ("a", "passed", 0),
        ("b", "failed", 3),
        ("c", "skipped", None),
        ("d", "passed", 0),
        ("e", "skipped", None),
    ]
    assert results[1].reason == "exit code 3"
    assert results[1].tail == "said 3 words"
    assert Path(results[1].log).name == "02-b.log"
    assert results[2].reason == "needs b"
    assert not has_passed(results)
    assert has_passed(results[:1])


def test_a_stage_that_hangs_is_ended_and_the_rest_goes_on(commands):
    results = run(commands, ValidationStage("a", "", ("hang",)), ValidationStage("b", "", ("0",)), timeout_s=1.5)
    assert [result.outcome for result in results] == ["failed", "passed"]
    assert "not done after" in results[0].reason


def test_the_servers_address_is_filled_in_and_its_absence_reported(commands):
    (result,) = run(commands, ValidationStage("a", "", ("0", "--url", SERVER)))
    assert result.command == "lookahead 0 --url h:1"
    (result,) = run(commands, ValidationStage("a", "", ("0", "--url", SERVER)), address=None)
    assert (result.outcome, result.reason) == ("failed", "the server is gone")


def test_what_must_always_be_done_is_done_after_an_interruption(commands):
    def interrupted(text: str) -> None:
        if "2/3" in text:
            raise KeyboardInterrupt

    stages = (
        ValidationStage("a", "", ("0",)),
        ValidationStage("b", "", ("1",)),
        ValidationStage("stop", "", ("5",), always=True),
    )
    with pytest.raises(KeyboardInterrupt):
        run_stages(stages, commands / "out", dict(os.environ), lambda: None, 20, note=interrupted)
    assert (commands / "ran").read_text().split() == ["0", "5"]


def test_an_interrupted_run_has_the_results_so_far_and_has_not_passed(commands):
    seen: list[list[StageResult]] = []

    def interrupted(text: str) -> None:
        if "2/2" in text:
            raise KeyboardInterrupt

    stages = (ValidationStage("a", "", ("0",)), ValidationStage("b", "", ("0", "word")))
    with pytest.raises(KeyboardInterrupt):
        run_stages(stages, commands / "out", dict(os.environ), lambda: None, 20, interrupted, seen.append)
    (results,) = seen
    assert [(result.outcome, result.reason) for result in results] == [("passed", ""), ("skipped", "not run")]
    assert results[1].command == "lookahead 0 word"
    assert not has_passed(results)


def test_the_stages_of_a_plan_name_model_settings_and_strategies(tmp_path):
    stages = {stage.name: stage for stage in stages_of(PLAN, tmp_path)}
    engine = stages["engine"].arguments
    assert engine[:5] == ("engine", "--model", "m", "--profile", "latency")
    for setting in ("backend=torch", "server.http_port=0", "device=cpu", "only=first"):
        assert setting in engine
    assert "none,trie" in stages["verify"].arguments
    assert all(SERVER in stages[name].arguments for name in ("verify", "bench"))  # not in process if the server is gone
    assert stages["switch"].arguments == ("switch", "--profile", "throughput", "--set", "device=cpu")
    assert stages["stop"].always
    names = list(stages)
    for place, stage in enumerate(stages.values()):
        assert set(stage.needs) <= set(names[:place])


def test_every_stage_is_a_command_that_takes_these_options(tmp_path, capsys):
    """Help wins over everything else, but not over an option that does not exist."""
    for stage in stages_of(PLAN, tmp_path):
        assert exit_code(*stage.arguments, "--help") == 0, stage.name
    capsys.readouterr()


def test_the_report_says_what_failed_with_its_log(tmp_path):
    results = [
        StageResult("engine", "checkpoint to engine", "lookahead engine", "passed", 1.25, 0),
        StageResult("serve", "a server", "lookahead serve", "failed", 2.0, 2, "exit code 2", "/x/s.log", "error: no"),
        StageResult("verify", "no token", "lookahead verify", "skipped", reason="needs serve"),
    ]
    report = report_of(PLAN, results)
    markdown, data = write_report(tmp_path, report)

    assert json.loads(data.read_text()) == report
    assert report["passed"] is False
    text = markdown.read_text()
    assert "| result | FAILED |" in text
    assert "| engine | checkpoint to engine | passed | 1.2 |" in text
    assert "| verify | no token | skipped (needs serve) | 0.0 |" in text
    assert "## Failed: serve\n\n`lookahead serve`\n\nLog: /x/s.log\n\n```\nerror: no\n```" in text
    assert "## Bench" not in text

    (tmp_path / "bench.json").write_text("{}")
    write_report(tmp_path, report)
    assert "The results cannot be read" in markdown.read_text()


def test_a_run_has_an_engines_folder_of_its_own(tmp_path):
    own, environment = private_folders(folders(), tmp_path)
    assert own.engines == tmp_path / "engines"
    assert environment["LOOKAHEAD_ENGINES"] == str(tmp_path / "engines")
    assert environment["LOOKAHEAD_CACHE"] == str(folders().cache)


def refused(capsys: Any, *arguments: str) -> str:
    assert exit_code("validate-gpu", *arguments) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    return str(lines[0])


def test_without_a_gpu_it_is_refused_in_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert "nvidia-smi shows no GPU" in refused(capsys)
    assert "--backend takes" in refused(capsys, "--backend", "cuda")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").touch()
    busy = ("--backend", "torch", "-m", "tiny-random-llama", "--set", "device=cpu", "--out", str(tmp_path / "out"))
    assert "is not empty" in refused(capsys, *busy)
    assert "is a file" in refused(capsys, *busy, "--out", str(tmp_path / "out" / "file"))
    programs, _ = fake_machine(tmp_path / "machine", mpirun=False)
    monkeypatch.setenv("PATH", str(programs))
    assert "Neither TensorRT-LLM nor docker" in refused(capsys)
    assert not list(tmp_path.glob("validation*"))


def test_options_of_the_other_part_and_wrong_names_are_refused_before_the_first_check(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert "--shapes has no effect without --part engine" in refused(capsys, "--shapes", "tiny")
    for option in ("--set=device=cpu", "--other-profile=balanced", "--stage-timeout=5"):
        expected = f"{option.split('=')[0]} has no effect with --part engine; leave it out."
        assert expected in refused(capsys, "--part", "engine", option)
    assert "no-such-model" in refused(capsys, "--part", "engine", "-m", "no-such-model")
    assert "qwen2.5-7b; found 'huge'" in refused(capsys, "--part", "engine", "--shapes", "tiny,huge")
    assert "--shapes lists an item twice" in refused(capsys, "--part", "engine", "--shapes", "tiny,tiny")
    assert not list(tmp_path.iterdir())


def planned(tmp_path: Path, monkeypatch: Any, *arguments: str, **machine: Any) -> ValidationPlan:
    """The stages of a GPU machine, without running them."""
    programs, _ = fake_machine(tmp_path / "machine", docker=True, **machine)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(validation, "run_stages", lambda *arguments: [])
    seen: list[ValidationPlan] = []
    monkeypatch.setattr(validation, "stages_of", lambda plan, folder: seen.append(plan))
    out = tmp_path / "out"
    out.mkdir()
    assert exit_code("validate-gpu", "--out", str(out), *arguments) == 0
    (plan,) = seen
    check(resolve_config(plan.model, plan.profile, plan.settings))
    check(resolve_config(plan.model, plan.other_profile, ("backend=tensorrt_llm", *plan.overrides)))
    return plan


def test_on_a_gpu_machine_both_profiles_hold_and_all_strategies_are_compared(tmp_path, monkeypatch):
    plan = planned(tmp_path, monkeypatch)
    assert plan.model == "smollm2-135m"
    assert plan.overrides == ("tensorrt_llm.compute_capability=90", "tensorrt_llm.gpu_memory_gib=80")
    assert plan.strategies == ("none", "lookahead", "trie")


def test_where_lookahead_is_untested_external_drafts_are_validated(tmp_path, monkeypatch):
    plan = planned(tmp_path, monkeypatch, gpu="NVIDIA B200, 10.0, 183359, 580.95.05")
    assert plan.strategies == ("none", "trie")


def test_what_the_user_sets_is_what_is_validated(tmp_path, monkeypatch):
    plan = planned(tmp_path, monkeypatch, "--set", "tensorrt_llm.speculation=lookahead")
    assert plan.strategies == ("none", "lookahead")
