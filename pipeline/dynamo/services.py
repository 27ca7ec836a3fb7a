"""Dynamo's processes as services: a worker for each Triton server, and the front end with the OpenAI API."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.config.folders import CODE
from pipeline.config.schema import ModelConfig, ResolvedConfig, ServerConfig
from pipeline.config.threads import NUM_THREADS
from pipeline.dynamo.own_discovery import DISCOVERY
from pipeline.dynamo.spec import DYNAMO_NAMESPACE, RPC_HOST, TRITON_KEYS, Membership, WorkerSpec
from pipeline.engine.backend import backend_of
from pipeline.errors import ServerError
from pipeline.server.discovery import ETCD_LEASE_TTL, FILE_KV, has_other_machines, needed_urls
from pipeline.server.ports import LOOPBACK, free_port
from pipeline.server.service import Service
from pipeline.server.state import ServerState, reachable, service_dir
from pipeline.server.watch import answers

FRONT_END, WORKER = "front-end", "worker"
# File with a worker's entries in discovery, see `GuardSpec.leftovers_path`.
ENTRIES = "entries"
INSTALL = "pip install 'lookahead-pipeline[dynamo]'"
# Limit of migrations per request. Each attempt to reach a killed worker counts, and each half second without a ready
# server on a machine.
_MIGRATION_LIMIT = 100
# A session stays on the worker with its KV cache and drafts until this many seconds after its last request. Dynamo's
# router mode `kv` finds the prefix without sessions, but in 1.4.2 it does not migrate a running request.
_ROUTING = ("--router-session-affinity-ttl-secs", "3600")
_STARTUP_S = 120.0
# Time after which the front end counts a worker of another machine as lost, if it sends neither tokens nor heartbeats.
SILENCE_S = 10.0
# Time for which etcd may be unreachable before the front end ends. It is long, because no other process uses the
# entries of the front end, so stale ones do no harm.
_FRONT_END_LEASE_S = 600


def has_dynamo() -> bool:
    """Whether the extra [dynamo] is installed."""
    return importlib.util.find_spec("dynamo") is not None and importlib.util.find_spec("dynamo.frontend") is not None


def require_dynamo() -> None:
    """Raise ServerError if the extra [dynamo] is not installed."""
    if not has_dynamo():
        raise ServerError(
            f"The OpenAI API needs NVIDIA Dynamo, which is not installed. Install it with `{INSTALL}`, or serve Triton "
            "alone with --set server.openai=false."
        )


def check_tool_call_parser(model: ModelConfig) -> None:
    """Raise ServerError if Dynamo does not have the model's tool_call_parser."""
    if model.tool_call_parser is None:
        return
    from dynamo._core import get_tool_parser_names

    names = sorted(get_tool_parser_names())
    if model.tool_call_parser not in names:
        raise ServerError(
            f"model.tool_call_parser of {model.name} is {model.tool_call_parser!r}; it must be one of Dynamo's: "
            f"{', '.join(names)}."
        )


def worker_service(
    number: int,
    resolved: ResolvedConfig,
    states: Sequence[ServerState],
    card_dir: Path,
    run_dir: Path,
    membership: Membership,
    has_front_end: bool = True,
    prompt_prefix: tuple[int, ...] = (),
) -> Service:
    """Service of a worker. number: of its Triton server, counted from 1. states: all Triton servers of this machine in
    the order of their numbers. card_dir: see `write_card`. has_front_end, prompt_prefix: see
    `WorkerSpec`."""
    profile, index = resolved.profile, number - 1
    states = [*states[index:], *states[:index]]  # the worker's own server first
    entries = service_dir(run_dir, f"{WORKER}-{number}") / ENTRIES
    entries.parent.mkdir(parents=True, exist_ok=True)
    spec = WorkerSpec(
        triton_urls=tuple(state.triton.http for state in states),
        model=resolved.model.name,
        card_dir=str(card_dir),
        discovery=profile.server.discovery,
        membership=membership,
        has_front_end=has_front_end,
        has_other_machines=has_other_machines(profile.server),
        max_seq_len=profile.engine.max_seq_len,
        max_batch_size=profile.engine.max_batch_size,
        prompt_prefix=prompt_prefix,
        prompt_ignore_length=backend_of(resolved.backend).traits(resolved)[0].extended,
        tool_call_parser=resolved.model.tool_call_parser,
        startup_timeout_s=profile.server.startup_timeout_s,
        entries_path=str(entries),
        is_traced=profile.server.otlp_endpoint is not None,
    )
    ports = {"metrics": free_port(LOOPBACK)}
    environment = _environment(profile.server, run_dir, WORKER, membership)
    # Front ends load the model card from this address, also those of other machines.
    host = environment.get(RPC_HOST, "0.0.0.0")
    environment |= {
        "DYN_SYSTEM_PORT": str(ports["metrics"]),
        "DYN_SYSTEM_HOST": host,
        TRITON_KEYS: ",".join(state.triton.key for state in states),
        "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": "1",
    }
    url = _health_url(host, ports)
    return Service(
        name=f"{WORKER}-{number}",
        argv=[sys.executable, "-m", "pipeline.dynamo.engine", spec.model_dump_json()],
        environment=environment,
        ports=ports,
        is_ready=lambda: answers(url),
        host=host,
        startup_timeout_s=_STARTUP_S + profile.server.startup_timeout_s,
        max_restarts=profile.server.max_restarts,
        # Entries to delete after a kill. Dynamo itself would list a killed worker for ten more seconds.
        leftovers_path=str(entries),
        waits_for=needed_urls(profile.server),
    )


def _health_url(host: str, ports: Mapping[str, int]) -> str:
    """URL at which a worker reports that it serves requests. host, ports: of its service."""
    return f"http://{reachable(host)}:{ports['metrics']}/health"


def front_end_service(
    resolved: ResolvedConfig,
    run_dir: Path,
    host: str,
    port: int,
    membership: Membership,
    workers: Sequence[Service] = (),
) -> Service:
    """Service of the OpenAI front end, which is ready when it lists the model. host, port: address to listen on.
    membership: of the workers that get its requests. workers: those of this machine. While one of them serves requests,
    the front end must list the model."""
    server = resolved.profile.server
    environment = _environment(server, run_dir, FRONT_END, membership)
    if has_other_machines(server):
        environment.setdefault("DYN_HTTP_BACKEND_STREAM_TIMEOUT_SECS", f"{SILENCE_S:.0f}")
        environment[ETCD_LEASE_TTL] = f"{_FRONT_END_LEASE_S}"
    argv = [
        *(sys.executable, "-m", "dynamo.frontend"),
        *("--http-host", host, "--http-port", str(port)),
        *("--migration-limit", str(_MIGRATION_LIMIT)),
        *(_ROUTING if server.replicas > 1 or has_other_machines(server) else ()),
    ]
    url = model_url(f"http://{reachable(host)}:{port}/v1", resolved.model.name)
    worker_urls = [_health_url(worker.host, worker.ports) for worker in workers]
    etcd = needed_urls(server)
    return Service(
        name=FRONT_END,
        argv=argv,
        environment=environment,
        ports={"http": port},
        is_ready=lambda: answers(url),
        host=host,
        startup_timeout_s=_STARTUP_S,
        max_restarts=server.max_restarts,
        watched_url=url,
        watched_needs=[group for group in (worker_urls, etcd) if group],
        waits_for=etcd,
    )


def model_url(url: str, model: str) -> str:
    """URL at which an OpenAI API answers while it serves a model. url: its base URL."""
    return f"{url}/models/{model}"


def _environment(
    server: ServerConfig, run_dir: Path, part: str, membership: Membership, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Environment variables of a Dynamo process. part: its name in traces."""
    result = dict(environment)
    result["PYTHONPATH"] = os.pathsep.join(filter(None, [str(CODE), environment.get("PYTHONPATH", "")]))
    result["DYN_DISCOVERY_BACKEND"] = server.discovery
    # In Kubernetes the operator has one namespace for each version of a deployment's workers.
    in_kubernetes = server.discovery == "kubernetes"
    result[DYNAMO_NAMESPACE] = membership.fleet if in_kubernetes else membership.namespace
    if not in_kubernetes:
        result.pop("DYN_NAMESPACE_PREFIX", None)  # it would replace the namespace
    # At its default level Dynamo logs each request.
    result.setdefault("DYN_LOG", "warn")
    result[NUM_THREADS] = "1"
    # Dynamo keeps the files of model cards in ~/.cache. A service of the system may have no home folder.
    if not os.access(environment.get("HOME", ""), os.W_OK):
        result["HOME"] = str(run_dir)
    # Prevents a temporary file with SGLang's log settings per process.
    result["DYN_SKIP_SGLANG_LOG_FORMATTING"] = "true"
    if server.json_logs:
        result["DYN_LOGGING_JSONL"] = "true"
    if server.otlp_endpoint is not None:
        result |= {
            "OTEL_EXPORT_ENABLED": "true",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{server.otlp_endpoint}/v1/traces",
            # Dynamo also exports log records, by default to this machine.
            "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": f"{server.otlp_endpoint}/v1/logs",
            "OTEL_SERVICE_NAME": f"lookahead-{part}",
        }
    if server.discovery == "file" and FILE_KV not in environment:
        result[FILE_KV] = str(run_dir / DISCOVERY)
        # All processes are on this machine, so they connect over the loopback device.
        result |= {RPC_HOST: LOOPBACK, "DYN_TCP_RESPONSE_STREAM_HOST": "lo"}  # the latter is a device name
    return result
