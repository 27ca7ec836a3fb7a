"""The verbs for a server's life: what they show, and what they say of a server that died."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline import cli
from pipeline.serving.installation import VARIABLE
from pipeline.serving.log import write_end
from tests.unit.serving.fake_machine import fake_machine


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "engines"
    monkeypatch.setenv("LOOKAHEAD_ENGINES", str(folder))
    (folder / ".run").mkdir(parents=True)
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    captured = capsys.readouterr()
    return int(caught.value.code or 0), captured.out, captured.err


@pytest.mark.parametrize("stopped", [True, False])
def test_status_names_the_log_of_a_server_that_died(engines, capsys, stopped):
    log = engines / ".run" / "server.log"
    log.write_text("words\n")
    write_end(log, stopped, "test")

    code, out, _ = run(capsys, "status")
    assert code == 2
    assert out.startswith("no server is running")
    assert (str(log) in out.replace("\n", "")) is not stopped
    code, out, _ = run(capsys, "status", "--json")
    assert json.loads(out) == {"running": False, "crash_log": None if stopped else str(log)}


def test_switch_needs_a_server_and_a_profile(engines, capsys):
    code, _, err = run(capsys, "switch", "--profile", "throughput")
    assert (code, err.count("\n")) == (2, 1)
    assert "No server is running" in err
    assert run(capsys, "switch")[0] == 2


def test_a_dry_run_shows_config_and_command_and_does_nothing(engines, capsys):
    code, out, _ = run(capsys, "serve", "-m", "tiny-random-llama", "--set", "backend=torch", "--dry-run")
    assert code == 0
    assert "name: tiny-random-llama" in out
    command = out.split("server:\n")[-1]
    assert f"--model-repository={engines}/tiny-random-llama/latency/repository" in command.replace("\n", "")
    assert "--http-port=8000" in command
    assert not list(engines.glob("tiny*"))


def test_a_dry_run_of_tensorrt_llm_shows_mpirun_with_every_rank(engines, tmp_path, monkeypatch, capsys):
    programs, server = fake_machine(tmp_path / "machine")
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv(VARIABLE, str(server))
    settings = ("backend=tensorrt_llm", "model.parallelism.tensor=2", "server.host=0.0.0.0")
    arguments = [part for setting in settings for part in ("--set", setting)]
    code, out, _ = run(capsys, "serve", "-m", "llama2-13b", *arguments, "--dry-run")
    assert code == 0
    command = out.split("server:\n")[-1]
    assert command.count("-n 1") == 2
    assert command.count("--load-model=tensorrt_llm") == 1
    assert "--http-address=0.0.0.0" in command
