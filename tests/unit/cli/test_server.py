"""The commands for a server's lifecycle: their output, also for a server that died."""

from __future__ import annotations

import errno
import json
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.cli.server import announce, switch_command
from pipeline.config.folders import folders
from pipeline.config.schema import ApiKey, ServerConfig
from pipeline.server.installation import VARIABLE
from pipeline.server.log import write_end
from tests.command_line import exit_code
from tests.server_states import guarded
from tests.servers import FREE_PORTS
from tests.unit.server.fake_machine import fake_machine


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "engines"
    monkeypatch.setenv("LOOKAHEAD_ENGINES", str(folder))
    (folder / ".run").mkdir(parents=True)
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = exit_code(*arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


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


def test_status_names_what_has_ended_and_the_restarts_of_the_others(engines, capsys):
    services = {"front-end": {"http": 7}, "worker-1": {"metrics": 8}}
    with guarded(engines / ".run", services, restarts=2, replicas=1, gateway_id="la2"):
        code, out, _ = run(capsys, "status")
        found = json.loads(run(capsys, "status", "--json")[1])

    assert code == 0
    rows = {cells[1].strip(): cells[2].strip() for line in out.splitlines() if len(cells := line.split("│")) == 4}
    assert rows["not running"] == "gateway"
    assert rows["worker-1"] == "metrics 8, restarts 2: signal 9"
    assert "OpenAI API" not in rows  # the front end itself is not for clients
    assert (found["openai_url"], found["not_running"]) == (None, ["gateway"])


def test_status_without_an_answer_of_the_metrics_has_the_rest(engines, capsys, monkeypatch):
    monkeypatch.setattr("pipeline.server.state.is_ready", lambda state: True)
    with guarded(engines / ".run", {}):
        code, out, err = run(capsys, "status")
        found = json.loads(run(capsys, "status", "--json")[1])

    assert (code, "m (p)" in out) == (0, True)
    assert "The metrics at http://127.0.0.1:3/metrics cannot be read" in err.replace("\n", " ")
    assert (found["ready"], found["figures"]) == (True, {})


def test_status_names_the_folder_of_another_users_server_whose_state_is_private(engines, tmp_path, monkeypatch, capsys):
    own = replace(folders(), engines=tmp_path / "own", shared_engines=engines)
    monkeypatch.setattr("pipeline.cli.server.folders", lambda: own)
    assert "another user" not in run(capsys, "status")[2]
    (engines / ".run" / "server.json").touch(0o000)
    code, out, err = run(capsys, "status")
    assert (code, out) == (2, "no server is running\n")
    assert f"another user may run one from {engines}" in err.replace("\n", "")


def test_the_command_for_other_machines_keeps_their_addresses():
    overrides = ("drafting.planner=fixed", "server.http_port=9", "model.dtype=float32")
    command = switch_command("my throughput.yaml", "smollm2-135m", overrides)

    assert command == (
        "lookahead switch --profile 'my throughput.yaml' --model smollm2-135m --set drafting.planner=fixed "
        "--set model.dtype=float32"
    )
    assert switch_command("throughput", None, ()) == "lookahead switch --profile throughput"


def test_switch_needs_a_server_and_a_profile(engines, capsys):
    code, _, err = run(capsys, "switch", "--profile", "throughput")
    assert (code, err.count("\n")) == (2, 1)
    assert "No server is running" in err
    assert run(capsys, "switch")[0] == 2


def test_a_client_without_a_server_gets_the_command_that_starts_one(engines, capsys):
    for verb in (("generate", "x"), ("chat",), ("load",)):
        code, _, err = run(capsys, *verb)
        assert code == 2
        assert err.endswith(
            "No server is running. Start one with `lookahead serve --background`, or name one with --url.\n"
        )


@pytest.mark.parametrize("keys", [(), (ApiKey(tenant="alice", key_sha256="0" * 64),)])
def test_the_printed_request_has_a_key_where_the_server_needs_one(capsys, keys):
    state = SimpleNamespace(model="m", profile="p", grpc_url="g", http_url="http://h", metrics_url="x")
    announce(state, None, ServerConfig(api_keys=keys))
    assert ("$LOOKAHEAD_API_KEY" in capsys.readouterr().out) is bool(keys)


def test_a_dry_run_shows_the_command_and_does_nothing(engines, capsys):
    words = ("serve", "-m", "tiny-random-llama", "--set", "backend=torch", "--dry-run")
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert "name: tiny-random-llama" not in out
    assert "name: tiny-random-llama" in run(capsys, *words, "--verbose")[1]
    command = out.split("server:\n")[-1]
    assert f"--model-repository={engines}/tiny-random-llama/latency/repository" in command.replace("\n", "")
    assert "--metrics-port=0" in command
    assert "--http-address=127.0.0.1 --http-port=0" in command  # behind the gateway
    assert not list(engines.glob("tiny*"))


def test_the_repository_of_a_running_server_is_not_written_again(engines, capsys):
    """After a restart the server would have the settings of that command, perhaps without protection."""
    repository = engines / "tiny-random-llama" / "latency" / "repository"
    words = ("repo", "-m", "tiny-random-llama", "--set", "backend=torch")
    with guarded(engines / ".run", {}, repository=str(repository)):
        for more in ((), ("--out", str(repository))):
            code, _, error = run(capsys, *words, *more)
            assert code == 2
            assert f"error: A server runs from {repository}." in error.replace("\n", " ")
    assert not repository.exists()


def test_a_disk_that_becomes_full_during_a_start_is_named(engines, monkeypatch, capsys):
    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")  # of a write, so it names no file

    monkeypatch.setattr("pipeline.server.startup.prepare", lambda *arguments, **options: None)
    monkeypatch.setattr("pipeline.dynamo.fleet.start_fleet", full)
    free_ports = [part for setting in FREE_PORTS for part in ("--set", setting)]
    code, _, error = run(capsys, "serve", "-m", "tiny-random-llama", *free_ports)
    assert code == 2
    assert f"error: The disk of {engines}/.run is full." in error


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
    assert "--metrics-address=127.0.0.1" in command


@pytest.mark.parametrize(
    ("site", "starts_with"),
    [
        ({}, ["mpirun"]),
        ({"tensorrt_llm": False}, ["mpirun"]),  # as it would be in the container
        ({"tensorrt_llm": False, "docker": True}, ["docker build", "docker run"]),
        ({"mpirun": False}, ["mpirun"]),  # a start would ask for it
    ],
)
def test_an_engines_plan_ends_with_what_serve_would_start(engines, tmp_path, monkeypatch, capsys, site, starts_with):
    programs, server = fake_machine(tmp_path / "machine", num_gpus=4, **site)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv(VARIABLE, str(server))
    settings = ("backend=tensorrt_llm", "tensorrt_llm.orchestrator=true", "server.host=0.0.0.0")
    settings += ("tensorrt_llm.spawn_processes=false",) if "mpirun" in site else ()
    arguments = ("-m", "llama2-13b", *(part for setting in settings for part in ("--set", setting)), "--dry-run")

    _, out, _ = run(capsys, "serve", *arguments)
    commands = [line.strip() for line in out.split("server:\n")[-1].splitlines()]
    code, out, _ = run(capsys, "engine", *arguments)
    assert code == 0
    assert [line.strip() for line in out.split("\nserving\n")[1].split("\n\nto know")[0].splitlines()] == commands
    code, out, err = run(capsys, "engine", *arguments, "--json")
    assert code == 0

    plan = json.loads(out)["plan"]["tensorrt_llm"]
    file = engines / "llama2-13b" / "latency.plan.json"
    assert json.loads(file.read_text()) == plan
    assert f"plan: {file}" in err.replace("\n", "")
    launch = plan["launch"]
    calls = [shlex.join(argv) for argv in (*launch["before"], launch["argv"])]
    assert len(calls) == len(starts_with)
    assert all(call.startswith(start) for call, start in zip(calls, starts_with, strict=True))
    pools = [word for word in launch["argv"] if word.startswith("--cuda-memory-pool-byte-size")]
    spawned = "mpirun" not in site
    assert pools == [f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(4)] * spawned
    assert {"--exit-timeout-secs=60", "--metrics-address=127.0.0.1"} <= set(launch["argv"])
