"""What a switch keeps of the running fleet of this machine: addresses, number of servers, and discovery."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from pipeline.dynamo.fleet import find_ended, openai_url, without_openai
from pipeline.dynamo.services import WORKER
from pipeline.dynamo.spec import DYNAMO_NAMESPACE, NAMESPACE, RPC_HOST, WorkerSpec
from pipeline.errors import ServerError
from pipeline.server.discovery import ETCD_ENDPOINTS, FILE_KV, etcd_urls
from pipeline.server.guard import GuardSpec, read_guard_spec
from pipeline.server.log import LOG
from pipeline.server.service import find_services
from pipeline.server.startup import PreparedServer
from pipeline.server.state import of_this_version, require_server, service_dir


def as_running(served: PreparedServer, run_dir: Path) -> PreparedServer:
    """The same server with the address, the number of replicas and the discovery of the running one, for a switch of
    the profile. Raises ServerError if its gateway or front end has ended, if another version of this program started
    it, or if this process would put the new server into another fleet, or at another address in it."""
    running = require_server(run_dir)
    ended = find_ended(run_dir, 0, bool(running.gateway_id))
    if ended:
        raise ServerError(
            f"The {ended[0]} of this server has ended; its log is in {service_dir(run_dir, ended[0]) / LOG}. Run "
            "`lookahead stop`, then `lookahead serve` again."
        )
    resolved = served.resolved.with_settings("server", **running.address)
    url = openai_url(run_dir)
    if url is None and not has_joined(run_dir):
        return replace(served, resolved=without_openai(resolved))
    folder = service_dir(run_dir, f"{WORKER}-1")
    with of_this_version(folder):
        worker = read_guard_spec(folder)
        spec = WorkerSpec.model_validate_json(worker.command[-1])
    _require_same_fleet(spec, worker)
    settings = {"openai": True, "replicas": running.replicas, "discovery": spec.discovery}
    if url is not None:
        settings["openai_port"] = urlsplit(url).port
    return replace(served, resolved=resolved.with_settings("server", **settings))


def has_joined(run_dir: Path) -> bool:
    """Whether the running server has joined the fleet of another machine: it has workers and no front end."""
    return openai_url(run_dir) is None and any(each.name.startswith(WORKER) for each in find_services(run_dir))


def _require_same_fleet(spec: WorkerSpec, worker: GuardSpec, environment: Mapping[str, str] = os.environ) -> None:
    """Raise ServerError if a server that this process starts would have another fleet or address than a running
    worker."""
    started = worker.environment
    found: dict[str, tuple[object, object]] = {
        DYNAMO_NAMESPACE: (spec.membership.fleet, environment.get(DYNAMO_NAMESPACE) or NAMESPACE)
    }
    if spec.discovery == "etcd":
        found[ETCD_ENDPOINTS] = (etcd_urls(started), etcd_urls(environment))
    elif spec.discovery == "file":
        found[FILE_KV] = (started[FILE_KV] if spec.has_other_machines else None, environment.get(FILE_KV))
    if spec.has_other_machines:
        found[RPC_HOST] = (started.get(RPC_HOST), environment.get(RPC_HOST))
    for name, (before, now) in found.items():
        if before != now:
            raise ServerError(
                f"The new server would not take the place of the running one in its fleet: {name} is now {_text(now)} "
                f"instead of {_text(before)}. Set the environment of this command as it was at the start of the server."
            )


def _text(value: object) -> str:
    return "not set" if value is None else ",".join(value) if isinstance(value, list) else str(value)
