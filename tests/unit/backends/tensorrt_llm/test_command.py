"""Starting a TensorRT-LLM engine: command lines as the stock launcher's, here and in a container, with small scripts in
the place of mpirun, tritonserver, nvidia-smi and docker."""

from __future__ import annotations

import json
import shlex
import site
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline.backends.tensorrt_llm.command import find_site
from pipeline.config.folders import folders
from pipeline.config.schema import ResolvedConfig
from pipeline.errors import ServerError
from pipeline.server.installation import VARIABLE
from pipeline.server.processes import MARK, marked_processes, shm_files
from pipeline.server.server import RunningServer
from pipeline.server.startup import PreparedServer, launch, start_commands
from pipeline.server.state import find_server
from pipeline.server.tritonserver_command import SHOWN_ID
from tests.servers import BARE, FREE_PORTS, wait_for
from tests.trt_configs import trt_config
from tests.unit.server.fake_machine import fake_machine


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Builds a fake machine and puts this process on it; returns the folder of its programs' recorded arguments."""

    def build(**what: Any) -> Path:
        programs, server = fake_machine(tmp_path, **what)
        monkeypatch.setenv("PATH", str(programs))
        monkeypatch.setenv(VARIABLE, str(server))
        return tmp_path / "record"

    return build


def served(tmp_path: Path, *overrides: str) -> PreparedServer:
    resolved = trt_config("llama2-13b", "latency", *FREE_PORTS, *BARE, "server.startup_timeout_s=20", *overrides)
    artifact = cast(Any, SimpleNamespace(manifest=SimpleNamespace(num_bytes=1)))
    return PreparedServer(resolved, artifact, tmp_path / "repository")


def start(tmp_path: Path, *overrides: str, **options: Any) -> RunningServer:
    return launch(served(tmp_path, *overrides), folders(), tmp_path / "run", **options)


def stock_words(config: ResolvedConfig, server: RunningServer, executable: str, rank: int, *extra: str) -> list[str]:
    """One rank in the stock launcher's words, with our two additions: addresses, and a name for shared memory."""
    state = server.state
    ports = [f"--grpc-port={state.grpc_port}", f"--http-port={state.http_port}"]
    ports.append(f"--metrics-port={state.metrics_port}")
    return [
        executable, f"--model-repository={state.repository}", "--exit-timeout-secs=60", *ports, *extra, *ports,
        *(f"--{name}-address={config.profile.server.host}" for name in ("grpc", "http", "metrics")),
        "--disable-auto-complete-config", f"--backend-config=python,shm-region-prefix-name={state.server_id}{rank}_",
    ]  # fmt: skip


def recorded(record: Path, server: RunningServer, rank: int) -> dict[str, Any]:
    """What a rank was started with; those above 0 may be a little later than the one that answers."""
    path = record / f"{server.state.server_id}{rank}_.json"
    wait_for(path.is_file)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def assert_nothing_left(server: RunningServer) -> None:
    assert not marked_processes(server.state.server_id)
    assert not shm_files(server.state.server_id)
    assert find_server(server.run_dir) is None


def test_two_ranks_start_under_mpirun_and_end_together(machine, tmp_path):
    record = machine()
    server = start(tmp_path, "model.parallelism.tensor=2", ".speculation=both", ".gpu_memory_gib=140")
    config = served(tmp_path).resolved
    executable = str(tmp_path / "tritonserver" / "bin" / "tritonserver")
    try:
        engines = ("tensorrt_llm_engine", "tensorrt_llm_lookahead")
        others = ["--model-control-mode=explicit", *(f"--load-model={name}" for name in engines)]
        words = json.loads((record / "mpirun.json").read_text())
        assert Path(words[0]).name == "mpirun"
        assert words[1:] == [
            "--allow-run-as-root",
            "-n", "1", *stock_words(config, server, executable, 0), ":",
            "-n", "1", *stock_words(config, server, executable, 1, *others), ":",
        ]  # fmt: skip
        for rank in (0, 1):
            assert recorded(record, server, rank)["orchestrator"] == {}
        assert recorded(record, server, 0)["handover"] == str(tmp_path / "run" / "handover")
        assert len(marked_processes(server.state.server_id)) == 4  # guard, mpirun and a server per rank
    finally:
        server.stop()
    assert_nothing_left(server)


def test_orchestrator_mode_sets_its_variables_and_pools(machine, tmp_path):
    record = machine(num_gpus=3)
    server = start(tmp_path, ".orchestrator=true")
    server.stop()

    started = recorded(record, server, 0)
    assert started["orchestrator"] == {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1"}
    pools = [word for word in started["argv"] if word.startswith("--cuda-memory-pool-byte-size")]
    assert pools == [f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(3)]
    assert "--pinned-memory-pool-byte-size=0" in started["argv"]
    assert_nothing_left(server)


def test_an_orchestrator_is_one_server_for_an_engine_of_two_ranks(machine, tmp_path):
    record = machine()
    server = start(tmp_path, ".orchestrator=true", "model.parallelism.tensor=2")
    server.stop()

    words = json.loads((record / "mpirun.json").read_text())
    assert words.count("-n") == 1
    assert not [word for word in words if word.startswith("--load-model")]
    assert_nothing_left(server)


def test_an_orchestrator_that_spawns_nothing_is_one_more_than_the_ranks(machine, tmp_path):
    record = machine()
    server = start(tmp_path, ".orchestrator=true", ".spawn_processes=false", "model.parallelism.tensor=2")
    started = [recorded(record, server, rank) for rank in range(3)]
    server.stop()

    assert json.loads((record / "mpirun.json").read_text()).count("-n") == 3
    for rank, what in enumerate(started):
        assert what["orchestrator"] == {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "0"}
        assert ("--load-model=tensorrt_llm_engine" in what["argv"]) is (rank > 0)
        assert not [word for word in what["argv"] if "pool" in word]
    assert_nothing_left(server)


def test_one_rank_needs_no_mpirun_and_two_do(machine, tmp_path):
    record = machine(mpirun=False)
    server = start(tmp_path)
    server.stop()
    assert ":" not in recorded(record, server, 0)["argv"]

    with pytest.raises(ServerError, match="2 ranks need mpirun, which was not found"):
        start(tmp_path, "model.parallelism.tensor=2")


def test_the_verbose_log_is_written_by_rank_0_only(machine, tmp_path):
    record = machine()
    server = start(tmp_path, "model.parallelism.tensor=2", verbose=True)
    words = json.loads((record / "mpirun.json").read_text())
    server.stop()

    log = ["--log-verbose=3", f"--log-file={tmp_path / 'run' / 'triton.log'}"]
    executable = str(tmp_path / "tritonserver" / "bin" / "tritonserver")
    first = stock_words(served(tmp_path).resolved, server, executable, 0, *log)
    assert words[4 : 4 + len(first)] == first
    assert sum(word.startswith("--log") for word in words) == 2


def test_too_few_gpus_are_named(machine, tmp_path):
    machine(num_gpus=1)
    with pytest.raises(ServerError, match=r"2 rank\(s\) need a GPU each, and nvidia-smi shows 1"):
        start(tmp_path, "model.parallelism.tensor=2")
    with pytest.raises(ServerError, match=r"2 rank\(s\) need a GPU each, and nvidia-smi shows 1"):
        start(tmp_path, "model.parallelism.tensor=2", ".orchestrator=true")
    assert not (tmp_path / "run" / "server.json").exists()


def test_without_the_backend_the_server_runs_in_docker_from_an_image_that_is_built_once(machine, tmp_path):
    record = machine(tensorrt_llm=False, docker=True)
    snapshot = tmp_path / "past.trie"
    sources = f"drafting.sources=[{{kind: trie, snapshot: {snapshot}}}]"
    for _ in range(2):
        server = start(tmp_path, "model.parallelism.tensor=2", sources)
        server.stop()
        assert_nothing_left(server)

    calls = [json.loads(line) for line in (record / "docker.jsonl").read_text().splitlines()]
    assert [call[0] for call in calls] == ["image", "build", "run", "rm", "rm", "image", "run", "rm", "rm"]
    build, run, remove = calls[1], calls[6], calls[7]
    base = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
    assert build[1:5] == ["--build-arg", f"BASE={base}", "--tag", "lookahead-serving:26.07"]
    assert Path(build[-1], "Dockerfile").is_file()
    assert Path(build[-1], "requirements.txt").is_file()

    name = f"lookahead-{server.state.server_id}"
    assert run[:6] == ["run", "--name", name, "--init", "--network", "host"]
    assert {"--gpus", "--ipc=host"} <= set(run)
    assert f"{MARK}={server.state.server_id}" in run
    assert f"PYTHONPATH={folders().home}" in run
    for read in (snapshot, tmp_path / "repository"):
        assert f"{read}:{read}:ro" in run
    inside = run[run.index("lookahead-serving:26.07") + 1 :]
    assert inside[:5] == ["mpirun", "--allow-run-as-root", "-n", "1", "/opt/tritonserver/bin/tritonserver"]
    assert remove == ["rm", "--force", name]


def test_the_image_lets_triton_find_our_package_where_it_is_mounted(tmp_path, monkeypatch):
    """The stub does not look at PYTHONPATH, so the image has a .pth file: run the line that writes it, and read it."""
    text = (folders().home / "docker" / "Dockerfile").read_text()
    code = shlex.split(next(line for line in text.splitlines() if line.startswith("RUN python3 -c ")))[3]
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    exec(code)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for home, found in (("/home/of/ours", True), (None, False)):
        monkeypatch.setenv("LOOKAHEAD_CODE", home) if home else monkeypatch.delenv("LOOKAHEAD_CODE")
        sys.path[:] = ["/other"]
        site.addpackage(str(tmp_path), "lookahead.pth", set())
        assert (sys.path[-1] == "/home/of/ours") is found


def test_a_failed_image_build_is_reported_with_dockers_message(machine, tmp_path):
    machine(tensorrt_llm=False, docker=True, build_fails=True)
    with pytest.raises(ServerError, match=r"lookahead-serving:26.07 could not be built(.|\n)*no such base image"):
        start(tmp_path)


def test_with_neither_backend_nor_docker_the_ways_out_are_named(machine, tmp_path):
    machine(tensorrt_llm=False)
    with pytest.raises(ServerError, match=r"no tensorrtllm backend, and docker was not.*container.*backend=torch"):
        start(tmp_path)
    with pytest.raises(ServerError, match="There is no tritonserver here, and docker"):
        find_site({"PATH": str(tmp_path), VARIABLE: str(tmp_path / "nothing")})


def test_what_is_shown_is_what_is_started(machine, tmp_path):
    record = machine()
    config = served(tmp_path, "model.parallelism.tensor=2").resolved
    (shown,) = start_commands(config, folders())
    server = start(tmp_path, "model.parallelism.tensor=2")
    server.stop()

    state = server.state
    repository = folders().engines / "llama2-13b" / "latency" / "repository"
    started = " ".join(json.loads((record / "mpirun.json").read_text())[1:])
    started = started.replace(state.repository, str(repository)).replace(state.server_id, SHOWN_ID)
    for name in ("http", "grpc", "metrics"):
        started = started.replace(f"--{name}-port={getattr(state, f'{name}_port')}", f"--{name}-port=0")
    assert shown.to_text() == f"mpirun {started}"


def test_what_is_shown_where_nothing_is_there_is_the_call_inside_the_container(machine, tmp_path):
    machine(tensorrt_llm=False)
    (shown,) = start_commands(served(tmp_path, ".orchestrator=true").resolved, folders())
    text = shown.to_text()
    assert text.startswith("TRTLLM_ORCHESTRATOR=1 TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES=1 mpirun --allow-run-as-root")
    assert " /opt/tritonserver/bin/tritonserver --model-repository=" in text


def test_a_command_is_shown_although_its_programs_are_not_there(machine, tmp_path):
    machine(mpirun=False, num_gpus=0)
    (shown,) = start_commands(served(tmp_path, "model.parallelism.tensor=2").resolved, folders())
    assert shown.to_text().startswith("mpirun --allow-run-as-root -n 1")


def test_in_docker_the_build_of_the_image_is_shown_too(machine, tmp_path):
    machine(tensorrt_llm=False, docker=True)
    build, run = start_commands(served(tmp_path).resolved, folders())
    assert build.to_text().startswith("docker build --build-arg BASE=nvcr.io/nvidia/tritonserver:26.07-trtllm")
    assert run.to_text().startswith(f"docker run --name lookahead-{SHOWN_ID}")
