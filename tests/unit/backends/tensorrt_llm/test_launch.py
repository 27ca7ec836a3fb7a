"""The server's command line, word for word as the stock launcher's."""

from __future__ import annotations

from pathlib import Path

from pipeline.backends.tensorrt_llm.launch import LaunchOptions, launch_of

REPOSITORY = Path("/repo")
PORTS = ["--grpc-port=8001", "--http-port=8000", "--metrics-port=8002"]
SERVER = "/opt/tritonserver/bin/tritonserver"


def rank_words(rank: int, *extra: str) -> list[str]:
    return [
        "-n", "1", SERVER, "--model-repository=/repo", *PORTS, *extra, *PORTS,
        "--disable-auto-complete-config", f"--backend-config=python,shm-region-prefix-name=prefix{rank}_", ":",
    ]  # fmt: skip


def test_leader_mode_starts_a_server_per_rank_and_only_engines_on_the_others():
    launch = launch_of(
        LaunchOptions(REPOSITORY, world_size=2, engine_models=("tensorrt_llm", "tensorrt_llm_lookahead"))
    )
    others = ["--model-control-mode=explicit", "--load-model=tensorrt_llm", "--load-model=tensorrt_llm_lookahead"]
    assert list(launch.argv) == ["mpirun", "--allow-run-as-root", *rank_words(0), *rank_words(1, *others)]
    assert launch.environment == {}


def test_options_stand_where_the_stock_launcher_puts_them():
    options = LaunchOptions(REPOSITORY, exit_timeout_s=30, log_file=Path("/log"))
    words = list(launch_of(options).argv)
    assert words[:4] == ["mpirun", "--allow-run-as-root", "-n", "1"]
    assert words[4:7] == [SERVER, "--model-repository=/repo", "--exit-timeout-secs=30"]
    assert words[10:12] == ["--log-verbose=3", "--log-file=/log"]


def test_our_additions_stand_at_the_end_and_are_off_unless_asked_for():
    words = list(launch_of(LaunchOptions(REPOSITORY, host="127.0.0.1", shm_prefix="la12")).argv)
    plain = list(launch_of(LaunchOptions(REPOSITORY)).argv)
    added = [f"--{name}-address=127.0.0.1" for name in ("grpc", "http", "metrics")]
    assert [word for word in words if word not in added] == [word.replace("prefix0_", "la120_") for word in plain]
    assert words[-6:-3] == added


def test_one_rank_runs_without_mpi_on_request():
    words = launch_of(LaunchOptions(REPOSITORY, use_mpi=False)).argv
    assert words[0] == SERVER
    assert ":" not in words


def test_orchestrator_mode_has_its_variables_and_small_pools():
    launch = launch_of(LaunchOptions(REPOSITORY, orchestrator=True, gpus=(0, 1)))
    assert launch.environment == {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1"}
    pools = ["--pinned-memory-pool-byte-size=0", "--enable-peer-access=false"]
    pools += ["--cuda-memory-pool-byte-size=0:0", "--cuda-memory-pool-byte-size=1:0"]
    assert list(launch.argv) == ["mpirun", "--allow-run-as-root", *rank_words(0, *pools)]
    unspawned = launch_of(LaunchOptions(REPOSITORY, orchestrator=True, world_size=2, spawn_processes=False))
    assert unspawned.environment["TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES"] == "0"
    assert not [word for word in unspawned.argv if "pool" in word]  # only where workers are spawned
