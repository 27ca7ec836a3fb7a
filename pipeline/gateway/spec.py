"""Spec of a gateway process: one JSON file that only its owner can read."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from pipeline.config.schema import ApiKey, Frozen, GatewayConfig

# Header that Triton's restricted interfaces require.
TRITON_KEY_HEADER = "lookahead-key"
# Triton's name for its key in the metadata of gRPC.
TRITON_GRPC_KEY = f"triton-grpc-protocol-{TRITON_KEY_HEADER}"


class DeploymentSpec(Frozen):
    """What stands behind the gateway. Another one may take its place while the gateway serves."""

    triton_http: str = Field(description="host:port of Triton's HTTP interface.")
    triton_grpc: str = Field(description="host:port of Triton's gRPC interface.")
    triton_metrics: str = Field(description="host:port of Triton's metrics.")
    triton_key: str = Field(description="Value of TRITON_KEY_HEADER that Triton asks for.")
    openai_http: str | None = Field(description="host:port of the OpenAI front end.")
    model: str = Field(description="Model that the OpenAI front end serves.")
    public_models: tuple[str, ...] = Field(description="Models that clients may call.")
    tenant_models: tuple[str, ...] = Field(description="Those of them that take a namespace.")
    max_seq_len: int


class GatewaySpec(Frozen):
    """Addresses of the gateway and of the servers behind it, keys and limits."""

    host: str
    http_port: int
    grpc_port: int
    metrics_host: str
    metrics_port: int
    openai_port: int | None = Field(description="A second HTTP port, for OpenAI clients; None for no OpenAI API.")
    deployment: DeploymentSpec
    api_keys: tuple[ApiKey, ...]
    config: GatewayConfig
    json_logs: bool = False


class GatewayStatus(Frozen):
    """Status of the gateway, written to a file beside its spec at every change."""

    triton_http: str = Field(description="Where new requests go.")
    num_running_earlier: int = Field(description="Requests that run on the servers before.")


def status_path(spec_path: Path) -> Path:
    return spec_path.with_name("status.json")
