"""The gateway of a server as a service: what it is started with, and when it is ready."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

from pipeline.config.places import CODE
from pipeline.config.schema import ServerConfig
from pipeline.engine.command import Listening, Ports
from pipeline.files import write_whole
from pipeline.gateway.spec import GatewaySpec
from pipeline.repository.names import FRONT_MODEL, STOCK_FRONT_MODEL, public_models
from pipeline.repository.render import check_repository
from pipeline.server.ports import LOOPBACK
from pipeline.server.service import Service, answers
from pipeline.server.state import GATEWAY

SPEC = "gateway.json"
# What the gateway's port for OpenAI clients is for.
OPENAI = "openai"


class OpenAIPorts(NamedTuple):
    """public: where clients reach the OpenAI API. front_end: where the gateway reaches the front end."""

    public: int
    front_end: int


def gateway_service(
    repository: Path,
    run_dir: Path,
    server: ServerConfig,
    public: Ports,
    triton: Listening,
    max_seq_len: int,
    openai: OpenAIPorts | None,
) -> Service:
    """The gateway in front of a Triton server. public: where clients reach it. triton: where it reaches Triton.
    max_seq_len: of the engine. openai: of the OpenAI API, if there is one."""
    assert triton.key is not None, "behind a gateway Triton asks for a key"
    models = check_repository(repository)
    spec = GatewaySpec(
        host=server.host,
        http_port=public.http,
        grpc_port=public.grpc,
        openai_port=None if openai is None else openai.public,
        triton_http=f"{triton.host}:{triton.ports.http}",
        triton_grpc=f"{triton.host}:{triton.ports.grpc}",
        triton_key=triton.key,
        openai_http=None if openai is None else f"{LOOPBACK}:{openai.front_end}",
        public_models=models if server.gateway.inner_models else public_models(models, not server.api_keys),
        tenant_models=(FRONT_MODEL, STOCK_FRONT_MODEL),
        max_seq_len=max_seq_len,
        api_keys=server.api_keys,
        config=server.gateway,
    )
    path = run_dir / SPEC
    write_whole(path, spec.model_dump_json(), private=True)
    environment = {**os.environ, "PYTHONPATH": str(CODE), "OMP_NUM_THREADS": "1"}
    host = LOOPBACK if server.host == "0.0.0.0" else server.host
    url = f"http://{host}:{public.http}/v2/health/live"
    ports = {"http": public.http, "grpc": public.grpc} | ({} if openai is None else {OPENAI: openai.public})
    argv = [sys.executable, "-m", "pipeline.gateway", str(path)]
    return Service(
        GATEWAY, argv, environment, ports, lambda: answers(url), server.host, max_restarts=server.max_restarts
    )
