"""Run a gateway until SIGTERM: `python -m pipeline.gateway SPEC`, with SPEC the path of a `GatewaySpec` in JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import signal
import socket
import sys
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

import grpc
import uvicorn
import uvloop
from pydantic import ValidationError
from starlette.types import ASGIApp

from pipeline.files import write_atomically
from pipeline.gateway.connections import (
    GRACE_S,
    by_port,
    for_pages,
    for_this_machine,
    in_origin_form,
    uvicorn_options,
    with_one_length,
)
from pipeline.gateway.deployment import Deployments
from pipeline.gateway.grpc_app import GrpcGateway, channel_options
from pipeline.gateway.http_app import HttpGateway
from pipeline.gateway.spec import GatewaySpec, GatewayStatus, status_path
from pipeline.gateway.tenants import Tenants
from pipeline.gateway.upstream import request

_BACKLOG = 512
_POLL_S = 0.1
_MANY_FILES = 1 << 20
# Control characters as Python writes them.
_ESCAPES = {code: ascii(chr(code))[1:-1] for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}


class _HttpServer(uvicorn.Server):
    """HTTP server that shuts down together with a gRPC server: running requests of both finish."""

    def __init__(self, config: uvicorn.Config, grpc_server: grpc.aio.Server, served: GrpcGateway) -> None:
        super().__init__(config)
        self._grpc_server, self._served = grpc_server, served

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.create_task(self._served.end_idle_streams())
        await asyncio.gather(super().shutdown(sockets), self._grpc_server.stop(GRACE_S))
        ending.cancel()


async def serve(spec: GatewaySpec, spec_path: Path) -> None:
    """Serve HTTP and gRPC until SIGTERM, which uvicorn sends again after running requests have finished. spec_path:
    file of the spec. If it changes, its deployment replaces the current one; other changes have no effect."""
    config = spec.config
    ports = [port for port in (spec.http_port, spec.openai_port) if port is not None]
    addresses = [*((spec.host, port) for port in ports), (spec.metrics_host, spec.metrics_port)]
    sockets = [_listening(host, port) for host, port in addresses]
    _listening(spec.host, spec.grpc_port).close()  # gRPC's own error does not have the reason
    tenants, deployments = Tenants(spec.api_keys, config), Deployments(spec.deployment)
    grpc_server = grpc.aio.server(options=channel_options(config.max_body_bytes, _open_files() // 2))
    served = GrpcGateway(spec, tenants, deployments)
    grpc_server.add_generic_rpc_handlers((served.handlers(), served.health_handlers()))
    grpc_server.add_insecure_port(f"{spec.host}:{spec.grpc_port}")
    await grpc_server.start()
    watching = asyncio.create_task(_follow_spec(deployments, spec_path))
    gateway = HttpGateway(spec, tenants, request, deployments)
    options = uvicorn_options(config.header_timeout_s, config.max_connections)
    server = _HttpServer(uvicorn.Config(_application(spec, gateway), **options), grpc_server, served)
    try:
        await server.serve(sockets)
    finally:
        watching.cancel()
        await deployments.close()


def _application(spec: GatewaySpec, gateway: HttpGateway) -> ASGIApp:
    """Application of all ports. Web pages can use it with an API key, or without keys if they are of this machine; they
    cannot read metrics, which need no key."""
    is_local = spec.host.startswith("127.") and not spec.api_keys
    app: ASGIApp = gateway.app()
    app = by_port(for_pages(app) if spec.api_keys or is_local else app, {spec.metrics_port: gateway.metrics_app()})
    return with_one_length(in_origin_form(for_this_machine(app) if is_local else app))


async def _follow_spec(deployments: Deployments, spec_path: Path) -> None:
    """Poll the spec file, switch to each new deployment, and write the status file."""
    status: GatewayStatus | None = None
    seen = 0
    while True:
        with suppress(OSError, ValidationError):  # the file may be incomplete
            if (written := spec_path.stat().st_mtime_ns) != seen:
                wanted = GatewaySpec.model_validate_json(spec_path.read_bytes()).deployment
                seen = written
                if wanted != deployments.current.spec:
                    deployments.replace(wanted)
        await deployments.close_idle()
        now = GatewayStatus(
            triton_http=deployments.current.spec.tritons[0].http, num_running_earlier=deployments.num_running_earlier
        )
        if now != status:
            with suppress(OSError):  # a full disk may have room later
                write_atomically(status_path(spec_path), now.model_dump_json() + "\n", private=True)
                status = now
        await asyncio.sleep(_POLL_S)


def _open_files() -> int:
    """Limit of open files. Connections to the gRPC port, which a client without a key can open too, may take half."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MANY_FILES if limit == resource.RLIM_INFINITY else limit


def _listening(host: str, port: int) -> socket.socket:
    # asyncio disables Nagle's algorithm, which costs 40 ms per response, only for sockets with an explicit protocol.
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((host, port))
    server.listen(_BACKLOG)
    server.setblocking(False)
    return server


class _TextFormatter(logging.Formatter):
    """One line per message: a message may quote a client's text, whose line ends would forge further lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = record.message.translate(_ESCAPES)
        return super().formatMessage(record)


class _JsonFormatter(logging.Formatter):
    """One JSON object per line, with the field names of Dynamo's logs."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, timezone.utc).isoformat()
        entry = {"time": when, "level": record.levelname, "target": record.name, "message": record.getMessage()}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def _configure_logging(as_json: bool) -> None:
    handler = logging.StreamHandler()
    text = _TextFormatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(_JsonFormatter() if as_json else text)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def main() -> int:
    """Serve the spec that the command line names. Returns the exit code: 2 if an address cannot be used."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    path = Path(sys.argv[1])
    spec = GatewaySpec.model_validate_json(path.read_bytes())
    _configure_logging(spec.json_logs)
    # The usual limit of open files, 1,024, is too small for `max_connections` and their requests to other servers.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        uvloop.run(serve(spec, path))
    except OSError as error:
        print(f"The gateway cannot listen on {spec.host}: {error}.", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
