"""The processes of Dynamo as services: a worker beside each Triton server, and the front end with the OpenAI API."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx

from pipeline.config.places import CODE
from pipeline.config.schema import ResolvedConfig, ServerConfig
from pipeline.dynamo.spec import NAMESPACE, TRITON_KEY, WorkerSpec
from pipeline.engine.backend import backend_of
from pipeline.errors import ServerError
from pipeline.server.ports import free_port
from pipeline.server.service import Service, answers
from pipeline.server.state import ServerState, reachable

FRONT_END, WORKER = "front-end", "worker"
DISCOVERY = "discovery"
# Variable with the folder by which processes find each other; set by users who share one between machines.
FILE_KV = "DYN_FILE_KV"
INSTALL = "pip install 'lookahead-pipeline[dynamo]'"
_LOOPBACK = "127.0.0.1"
# A request may move so often. A worker that was killed stays listed for about ten seconds, and each attempt to reach it
# counts; so does each look at a server that is being started again.
_MIGRATION_LIMIT = 100
_STARTUP_S = 120.0
# Dynamo reads the port of a worker's metrics as a signed number of 16 bits.
_SYSTEM_PORTS = range(20000, 1 << 15)


def has_dynamo() -> bool:
    """Whether the extra [dynamo] is installed."""
    return importlib.util.find_spec("dynamo") is not None and importlib.util.find_spec("dynamo.frontend") is not None


def require_dynamo() -> None:
    """Raises ServerError if the extra [dynamo] is not installed."""
    if not has_dynamo():
        raise ServerError(
            f"The OpenAI API needs NVIDIA Dynamo, which is not installed. Install it with `{INSTALL}`, or serve Triton "
            "alone with --set server.openai=false."
        )


def worker_service(number: int, resolved: ResolvedConfig, state: ServerState, card_dir: Path, run_dir: Path) -> Service:
    """The worker of one Triton server. number: of the replica, from 1 on."""
    profile = resolved.profile
    spec = WorkerSpec(
        triton_url=state.triton_grpc_url,
        model=resolved.model.name,
        card_dir=str(card_dir),
        discovery=profile.server.discovery,
        max_seq_len=profile.engine.max_seq_len,
        max_batch_size=profile.engine.max_batch_size,
        prompt_ignore_length=backend_of(resolved.backend).traits(resolved)[0].extended,
        startup_timeout_s=profile.server.startup_timeout_s,
    )
    ports = {"metrics": free_port(_LOOPBACK, _SYSTEM_PORTS)}
    environment = _environment(profile.server, run_dir) | {
        "DYN_SYSTEM_PORT": str(ports["metrics"]),
        "DYN_SYSTEM_HOST": _LOOPBACK,
        TRITON_KEY: state.triton_key or "",
        "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": "1",
    }
    url = f"http://{_LOOPBACK}:{ports['metrics']}/health"
    return Service(
        f"{WORKER}-{number}",
        [sys.executable, "-m", "pipeline.dynamo.worker", spec.model_dump_json()],
        environment,
        ports,
        lambda: answers(url),
        startup_timeout_s=_STARTUP_S + profile.server.startup_timeout_s,
        max_restarts=profile.server.max_restarts,
    )


def front_end_service(resolved: ResolvedConfig, run_dir: Path, host: str, port: int) -> Service:
    """The OpenAI API. host, port: where it listens; ready when it lists the model."""
    environment = _environment(resolved.profile.server, run_dir)
    argv = [
        *(sys.executable, "-m", "dynamo.frontend"),
        *("--http-host", host, "--http-port", str(port)),
        *("--namespace", NAMESPACE),
        *("--migration-limit", str(_MIGRATION_LIMIT)),
    ]
    url, model = f"http://{reachable(host)}:{port}/v1/models", resolved.model.name
    restarts = resolved.profile.server.max_restarts
    return Service(
        FRONT_END, argv, environment, {"http": port}, lambda: lists_model(url, model), host, _STARTUP_S, restarts
    )


def lists_model(url: str, model: str) -> bool:
    """Whether an OpenAI API serves a model. url: of its list of models."""
    try:
        answer = httpx.get(url, timeout=2.0, trust_env=False)
        return any(entry["id"] == model for entry in answer.json()["data"])
    except (httpx.HTTPError, ValueError, KeyError):
        return False


def _environment(server: ServerConfig, run_dir: Path, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of every process of Dynamo."""
    result = dict(environment)
    result["PYTHONPATH"] = os.pathsep.join(filter(None, [str(CODE), environment.get("PYTHONPATH", "")]))
    result["DYN_DISCOVERY_BACKEND"] = server.discovery
    # Dynamo logs each request otherwise.
    result.setdefault("DYN_LOG", "warn")
    result["OMP_NUM_THREADS"] = "1"
    if server.discovery == "file" and FILE_KV not in environment:
        result[FILE_KV] = str(run_dir / DISCOVERY)
        # The parts of one machine talk over the loopback device.
        result |= {"DYN_TCP_RPC_HOST": _LOOPBACK, "DYN_TCP_RESPONSE_STREAM_HOST": "lo"}  # the name of a device
    return result
