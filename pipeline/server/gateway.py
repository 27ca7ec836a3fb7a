"""The gateway as a service: its command, and the files by which it switches to other servers."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.config.folders import CODE
from pipeline.config.schema import ResolvedConfig
from pipeline.config.threads import NUM_THREADS
from pipeline.engine.start_command import Listening, Ports
from pipeline.files import write_atomically
from pipeline.gateway.spec import DeploymentSpec, GatewaySpec, TritonSpec, status_path
from pipeline.repository.names import FRONT_MODEL, STOCK_FRONT_MODEL, public_models
from pipeline.server.discovery import listed_s
from pipeline.server.ports import LOOPBACK, OpenAIPorts
from pipeline.server.service import Service
from pipeline.server.shared_services import locked_state
from pipeline.server.state import GATEWAY, ServerState, gateway_state_path, of_this_version, reachable, service_dir
from pipeline.server.watch import answers

SPEC = "gateway.json"
# Name of the gateway's port for OpenAI clients.
OPENAI = "openai"


def gateway_service(
    resolved: ResolvedConfig,
    repository: Path,
    run_dir: Path,
    public: Ports,
    triton: TritonSpec,
    openai: OpenAIPorts | None,
) -> Service:
    """Service of the gateway in front of a Triton server. public: ports for clients. triton: Triton's addresses.
    openai: ports of the OpenAI API; None if there is none."""
    server = resolved.profile.server
    front_end = None if openai is None else openai.front_end
    spec = GatewaySpec(
        host=server.host,
        http_port=public.http,
        grpc_port=public.grpc,
        metrics_host=server.metrics_host,
        metrics_port=public.metrics,
        openai_port=None if openai is None else openai.public,
        deployment=deployment_spec(resolved, repository, [triton], front_end),
        api_keys=server.api_keys,
        config=server.gateway,
        json_logs=server.json_logs,
    )
    path = spec_path(run_dir)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, spec.model_dump_json(), private=True)
    status_path(path).unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(CODE), NUM_THREADS: "1"}
    url = f"http://{reachable(server.host)}:{public.http}"
    ports = public._asdict() | ({} if openai is None else {OPENAI: openai.public})
    argv = [sys.executable, "-m", "pipeline.gateway", str(path)]
    return Service(
        name=GATEWAY,
        argv=argv,
        environment=environment,
        ports=ports,
        is_ready=lambda: answers(f"{url}/v2/health/live"),
        host=server.host,
        max_restarts=server.max_restarts,
        watched_url=f"{url}/openapi.json",  # the gateway answers by itself, also while Triton hangs
    )


def deployment_spec(
    resolved: ResolvedConfig, repository: Path, tritons: Sequence[TritonSpec], front_end: int | None
) -> DeploymentSpec:
    """Addresses and models of the servers behind a gateway. front_end: port of the OpenAI front end on the loopback
    device."""
    from pipeline.repository.render import check_repository  # brings tritonclient

    models, server = check_repository(repository), resolved.profile.server
    return DeploymentSpec(
        tritons=tuple(tritons),
        openai_http=None if front_end is None else f"{LOOPBACK}:{front_end}",
        model=resolved.model.name,
        tool_call_parser=resolved.model.tool_call_parser,
        public_models=models if server.gateway.inner_models else public_models(models, not server.api_keys),
        tenant_models=(FRONT_MODEL, STOCK_FRONT_MODEL),
        max_seq_len=resolved.profile.engine.max_seq_len,
        max_open_requests=resolved.profile.engine.max_batch_size + resolved.profile.scheduling.max_queue_size,
        listed_s=listed_s(server),
    )


def set_replicas(run_dir: Path, replicas: Sequence[ServerState]) -> None:
    """Put all Triton servers of a fleet behind its running gateway, which then ends with the last one."""
    tritons = tuple(replica.triton for replica in replicas)
    set_deployment(run_dir, read_gateway_spec(run_dir).deployment.model_copy(update={"tritons": tritons}))
    end_gateway_with(run_dir, [replica.server_id for replica in replicas])


def read_gateway_spec(run_dir: Path) -> GatewaySpec:
    """Spec of the gateway of a run folder. Raises ServerError if another version of this program wrote it."""
    with of_this_version(path := spec_path(run_dir)):
        return GatewaySpec.model_validate_json(path.read_bytes())


def set_deployment(run_dir: Path, deployment: DeploymentSpec) -> None:
    """Put other servers behind the running gateway, which polls its spec."""
    spec = read_gateway_spec(run_dir).model_copy(update={"deployment": deployment})
    write_atomically(spec_path(run_dir), spec.model_dump_json(), private=True)


def end_gateway_with(run_dir: Path, server_ids: Sequence[str]) -> None:
    """Let the running gateway end with the last of these servers."""
    with locked_state(gateway_state_path(run_dir)) as state:
        state["ends_with"] = list(server_ids)


def triton_spec(triton: Listening) -> TritonSpec:
    """Addresses of a Triton server for requests of this machine. triton: where it listens."""
    http, grpc, metrics = (f"{reachable(triton.host)}:{port}" for port in triton.ports)
    return TritonSpec(http=http, grpc=grpc, metrics=metrics, key=triton.key or "")


def spec_path(run_dir: Path) -> Path:
    """Path of the gateway's spec in a run folder."""
    return service_dir(run_dir, GATEWAY) / SPEC
