"""Processes of a fleet, and configs that are refused before the build."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from pathlib import Path

import pytest

from pipeline.bench.validation.validation import FREE_PORTS
from pipeline.config.resolution import resolve_config
from pipeline.config.schema import ResolvedConfig
from pipeline.dynamo import services
from pipeline.dynamo.engine import _HEARTBEAT_S, TritonEngine
from pipeline.dynamo.fleet import check_fleet, without_openai
from pipeline.dynamo.services import front_end_service, require_dynamo, worker_service
from pipeline.dynamo.spec import DYNAMO_NAMESPACE, RPC_HOST, TRITON_KEYS, Membership, WorkerSpec
from pipeline.errors import ConfigError, ServerError
from pipeline.server.discovery import ETCD_ENDPOINTS, ETCD_LEASE_TTL, FILE_KV
from pipeline.server.service import Service
from pipeline.server.state import find_replicas, replica_dir
from tests.server_states import STATE, state_of
from tests.unit.dynamo.requests import FLEET, SPEC


def config(*overrides: str) -> ResolvedConfig:
    # The default ports may be in use on the machine that runs the tests.
    return resolve_config("tiny-random-llama", "latency", ("backend=torch", "device=cpu", *FREE_PORTS, *overrides))


def test_a_worker_talks_to_triton_itself_and_its_key_is_no_argument(tmp_path):
    other = state_of({"http": "127.0.0.1:6", "key": "other"})
    service = worker_service(2, config("engine.max_seq_len=512"), [other, STATE], tmp_path, tmp_path, FLEET)

    spec = WorkerSpec.model_validate_json(service.argv[-1])
    assert service.name == "worker-2"
    assert spec.triton_urls == ("127.0.0.1:4", "127.0.0.1:6")  # its own first
    assert (spec.model, spec.max_seq_len, spec.discovery) == ("tiny-random-llama", 512, "file")
    assert "secret" not in json.dumps(list(service.argv))
    assert service.environment[TRITON_KEYS] == "secret,other"
    assert service.environment["DYN_SYSTEM_PORT"] == str(service.ports["metrics"])
    assert service.ports["metrics"] < 1 << 15  # Dynamo reads no larger one


def test_processes_of_one_machine_find_each_other_in_its_run_folder(tmp_path, monkeypatch):
    monkeypatch.delenv(FILE_KV, raising=False)
    alone = front_end_service(config(), tmp_path, "127.0.0.1", 8080, FLEET).environment
    monkeypatch.setenv(FILE_KV, "/shared")
    shared = front_end_service(config(), tmp_path, "127.0.0.1", 8080, FLEET).environment

    assert alone[FILE_KV] == str(tmp_path / "discovery")
    assert alone["DYN_TCP_RPC_HOST"] == "127.0.0.1"
    assert shared[FILE_KV] == "/shared"
    assert "DYN_TCP_RPC_HOST" not in shared


@pytest.mark.parametrize("home", [None, "/dev/null/home"])
def test_without_a_home_folder_dynamo_writes_to_the_run_folder(home, tmp_path, monkeypatch):
    """It keeps files of model cards in ~/.cache, and the front end never listed the model if it could not."""
    if home is None:
        monkeypatch.delenv("HOME", raising=False)
    else:
        monkeypatch.setenv("HOME", home)
    assert front_end_service(config(), tmp_path, "127.0.0.1", 8080, FLEET).environment["HOME"] == str(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / ".."))
    assert front_end_service(config(), tmp_path, "127.0.0.1", 8080, FLEET).environment["HOME"] == str(tmp_path / "..")


def test_a_fleet_over_etcd_listens_at_the_address_of_its_machine(tmp_path, monkeypatch):
    monkeypatch.delenv(RPC_HOST, raising=False)
    environment = front_end_service(config("server.discovery=etcd"), tmp_path, "127.0.0.1", 8080, FLEET).environment

    assert environment["DYN_DISCOVERY_BACKEND"] == "etcd"
    assert float(environment["DYN_HTTP_BACKEND_STREAM_TIMEOUT_SECS"]) > 3 * _HEARTBEAT_S
    assert environment[ETCD_LEASE_TTL] == "600"
    assert RPC_HOST not in environment


def test_the_processes_of_a_fleet_over_etcd_wait_for_it_and_the_front_end_is_watched(tmp_path, monkeypatch):
    monkeypatch.setenv(ETCD_ENDPOINTS, "http://one:1,https://two:2")
    monkeypatch.setenv(RPC_HOST, "127.0.0.1")

    def services_of(*overrides: str) -> tuple[Service, Service]:
        worker = worker_service(1, config(*overrides), [STATE], tmp_path, tmp_path, FLEET)
        return worker, front_end_service(config(*overrides), tmp_path, "127.0.0.1", 8080, FLEET, [worker])

    etcd = ["http://one:1/health", "https://two:2/health"]
    for discovery, expected in (("etcd", etcd), ("file", [])):
        worker, front_end = services_of(f"server.discovery={discovery}")
        assert list(worker.waits_for) == list(front_end.waits_for) == expected
        assert front_end.watched_url == "http://127.0.0.1:8080/v1/models/tiny-random-llama"
        health = f"http://127.0.0.1:{worker.ports['metrics']}/health"
        assert front_end.watched_needs == [[health], *([expected] if expected else [])]


def test_the_processes_of_one_machine_need_no_heartbeats(tmp_path, monkeypatch):
    """Their connections break with them, and a machine that sleeps would seem to be silent."""
    monkeypatch.delenv(FILE_KV, raising=False)
    environment = front_end_service(config(), tmp_path, "127.0.0.1", 8080, FLEET).environment

    assert "DYN_HTTP_BACKEND_STREAM_TIMEOUT_SECS" not in environment
    assert ETCD_LEASE_TTL not in environment


def test_workers_of_all_machines_have_the_same_path_in_their_model_card(tmp_path):
    """Dynamo's checksum of a card covers the path, and a front end logs workers of one model that differ in it."""
    paths = set()
    for machine in ("a", "b"):
        service = worker_service(1, config(), [STATE], tmp_path / machine / "card" / "m", tmp_path, FLEET)
        _, worker_config = asyncio.run(TritonEngine.from_args([service.argv[-1]]))
        paths.add(worker_config.model_name)

    assert paths == {"m"}


def test_front_ends_of_other_machines_can_load_the_model_card_of_a_worker(tmp_path, monkeypatch):
    """Dynamo puts the address of this server into the card: with loopback, another machine would ask itself."""
    monkeypatch.delenv(FILE_KV, raising=False)
    monkeypatch.delenv(RPC_HOST, raising=False)

    def system_host(*overrides: str) -> str:
        return worker_service(1, config(*overrides), [STATE], tmp_path, tmp_path, FLEET).environment["DYN_SYSTEM_HOST"]

    assert system_host() == "127.0.0.1"
    assert system_host("server.discovery=kubernetes") == "0.0.0.0"
    monkeypatch.setenv(RPC_HOST, "10.0.0.5")
    assert system_host("server.discovery=etcd") == "10.0.0.5"


def test_workers_and_front_ends_of_one_engine_have_a_namespace_of_their_own(tmp_path, monkeypatch):
    """A front end sends requests to its namespace only, and so moves none to an engine with other tokens."""
    monkeypatch.setenv("DYN_NAMESPACE_PREFIX", "lookahead")  # would include all engines

    def namespace_of(membership: Membership, *overrides: str) -> str:
        worker = worker_service(1, config(*overrides), [STATE], tmp_path, tmp_path, membership).environment
        front_end = front_end_service(config(*overrides), tmp_path, "127.0.0.1", 1, membership).environment
        assert ("DYN_NAMESPACE_PREFIX" in front_end) is bool(overrides)
        assert worker[DYNAMO_NAMESPACE] == front_end[DYNAMO_NAMESPACE]
        return worker[DYNAMO_NAMESPACE]

    other = FLEET.model_copy(update={"engine": {"dtype": "bfloat16"}})
    assert re.fullmatch("lookahead-[0-9a-f]{12}", namespace_of(FLEET))
    assert namespace_of(other) != namespace_of(FLEET)
    kubernetes = "server.discovery=kubernetes"  # Dynamo's operator has one namespace for each version of the workers
    assert namespace_of(other, kubernetes) == namespace_of(FLEET, kubernetes) == "lookahead"


def test_a_worker_has_the_suffix_of_dynamos_operator_in_its_namespace(monkeypatch):
    monkeypatch.setenv(DYNAMO_NAMESPACE, "team-chat")
    monkeypatch.setenv("DYN_NAMESPACE_WORKER_SUFFIX", "4f2a")  # the workers of one version
    _, worker_config = asyncio.run(TritonEngine.from_args([SPEC.model_dump_json()]))
    assert worker_config.namespace == "team-chat-4f2a"


def test_traces_and_logs_of_dynamo_go_where_the_config_says(tmp_path):
    overrides = ("server.otlp_endpoint=http://collector:4318", "server.json_logs=true")
    environment = front_end_service(config(*overrides), tmp_path, "127.0.0.1", 8080, FLEET).environment
    plain = front_end_service(config(), tmp_path, "127.0.0.1", 8080, FLEET).environment

    assert environment["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] == "http://collector:4318/v1/traces"
    assert environment["OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"] == "http://collector:4318/v1/logs"
    assert environment["OTEL_SERVICE_NAME"] == "lookahead-front-end"
    assert environment["DYN_LOGGING_JSONL"] == "true"
    assert not {"OTEL_EXPORT_ENABLED", "DYN_LOGGING_JSONL"} & plain.keys()


@pytest.mark.parametrize("endpoint", ["collector:4318", "http://collector:4318/v1/traces", "ftp://x"])
def test_an_endpoint_that_is_none_is_refused(endpoint):
    with pytest.raises(ConfigError, match="otlp_endpoint"):
        config(f"server.otlp_endpoint={endpoint}")


def test_several_workers_keep_sessions(tmp_path):
    one = front_end_service(config(), tmp_path, "127.0.0.1", 8080, FLEET).argv
    two = front_end_service(config("server.replicas=2"), tmp_path, "127.0.0.1", 8080, FLEET).argv

    assert "--router-session-affinity-ttl-secs" in two
    assert "--router-session-affinity-ttl-secs" not in one


def test_a_taken_port_is_named_before_an_engine_is_built():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        with pytest.raises(ServerError, match=rf"Port {port} \(server.openai_port\)"):
            check_fleet(config(f"server.openai_port={port}"))
        check_fleet(without_openai(config(f"server.openai_port={port}")))


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [((), "--join has no fleet to join"), (("server.openai=false",), "server.openai is false")],
)
def test_a_machine_without_a_fleet_cannot_join(overrides, sentence, monkeypatch):
    monkeypatch.delenv(FILE_KV, raising=False)

    with pytest.raises(ServerError, match=sentence):
        check_fleet(config(*overrides), join=True)
    monkeypatch.setenv(ETCD_ENDPOINTS, "http://127.0.0.1:1")
    with pytest.raises(ServerError, match="no etcd answers"):
        check_fleet(config("server.discovery=etcd"), join=True)


def test_a_parser_that_dynamo_lacks_is_named_before_an_engine_is_built():
    with pytest.raises(
        ServerError, match=r"model.tool_call_parser of tiny-random-llama is 'magic'; it must be one of .*hermes"
    ):
        check_fleet(config("model.tool_call_parser=magic"))
    check_fleet(config("model.tool_call_parser=hermes"))


def test_without_the_extra_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setattr(services, "has_dynamo", lambda: False)

    with pytest.raises(ServerError, match=r"lookahead-pipeline\[dynamo\](.|\n)*server.openai=false"):
        require_dynamo()


def test_the_first_replica_has_the_run_folder_itself():
    assert [replica_dir(Path("/run"), number).name for number in (1, 2, 3)] == ["run", "replica-2", "replica-3"]


def test_a_copy_of_a_replicas_folder_is_no_replica(tmp_path: Path):
    (tmp_path / "replica-old").mkdir()
    assert find_replicas(tmp_path) == {}
