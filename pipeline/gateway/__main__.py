"""Run a gateway until SIGTERM: `python -m pipeline.gateway SPEC`."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from pathlib import Path

import grpc
import uvicorn

from pipeline.gateway.connections import uvicorn_options
from pipeline.gateway.forward import create_client
from pipeline.gateway.grpc_app import GrpcGateway, channel_options, upstream_options
from pipeline.gateway.http_app import HttpGateway
from pipeline.gateway.spec import GatewaySpec
from pipeline.gateway.tenants import Tenants

_GRACE_S = 5.0
_BACKLOG = 512


async def serve(spec: GatewaySpec) -> None:
    """Serve HTTP and gRPC until a signal ends it."""
    config = spec.config
    tenants = Tenants(spec.api_keys, config, spec.max_seq_len)
    channel = grpc.aio.insecure_channel(spec.triton_grpc, options=upstream_options())
    grpc_server = grpc.aio.server(options=channel_options(config.max_body_bytes))
    grpc_server.add_generic_rpc_handlers((GrpcGateway(spec, tenants, channel).handlers(),))
    grpc_server.add_insecure_port(f"{spec.host}:{spec.grpc_port}")
    await grpc_server.start()
    async with create_client() as client:
        app = HttpGateway(spec, tenants, client).app()
        options = uvicorn_options(config.header_timeout_s, config.max_connections)
        server = uvicorn.Server(uvicorn.Config(app, **options))
        ports = [port for port in (spec.http_port, spec.openai_port) if port is not None]
        await server.serve([_listening(spec.host, port) for port in ports])
    await grpc_server.stop(_GRACE_S)
    await channel.close()


def _listening(host: str, port: int) -> socket.socket:
    # With the protocol named, as asyncio turns off Nagle's algorithm for such sockets only: it costs 40 ms a response.
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((host, port))
    server.listen(_BACKLOG)
    server.setblocking(False)
    return server


def main() -> int:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    spec = GatewaySpec.model_validate_json(Path(sys.argv[1]).read_bytes())
    try:
        asyncio.run(serve(spec))
    except OSError as error:
        print(f"The gateway cannot listen on {spec.host}: {error}.", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
